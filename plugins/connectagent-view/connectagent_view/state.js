// What the modules share: the session that is shown, the filter, and where things are in the page.

/**
 * An element of the page.
 * @param {string} id
 * @returns {any}
 */
export const at = (id) => document.getElementById(id);

/** @type {{shown: any, listed: number, text: string, kind: string, found: Set<number> | null}} */
export const state = {
  shown: null, // the session that is shown, with its views
  listed: 0, // sessions in the list that were asked for beyond the first ones
  text: "", // of the filter
  kind: "",
  found: null, // entries that the search in whole texts has found
};

export const place = () => new URLSearchParams(location.hash.slice(1));

/** @param {Record<string, any>} given */
export const address = (given) => `#${new URLSearchParams(given)}`;

// What a person has chosen for good; a page that was opened from a file may have no storage.
export const kept = {
  /** @param {string} key */
  get(key) {
    try {
      return localStorage.getItem(`connectagent-${key}`);
    } catch {
      return null;
    }
  },
  /** @param {string} key @param {string} value */
  set(key, value) {
    try {
      localStorage.setItem(`connectagent-${key}`, value);
    } catch {
      // it is forgotten
    }
  },
};
