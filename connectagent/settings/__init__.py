"""Settings of the process and the project, and the check of those that the person must allow."""

from connectagent.settings.names import SHADOW, plugin_file
from connectagent.settings.project import leads_out, looking_once, project_file, project_folder
from connectagent.settings.values import (
    SETTINGS,
    asked_by,
    check_allowed,
    check_file,
    co_folder,
    enabled,
    named_plugins,
    override,
    overrides,
    project_settings,
    read_allowed,
    refusal,
    setting,
)

__all__ = [
    "SETTINGS",
    "SHADOW",
    "asked_by",
    "check_allowed",
    "check_file",
    "co_folder",
    "enabled",
    "leads_out",
    "looking_once",
    "named_plugins",
    "override",
    "overrides",
    "plugin_file",
    "project_file",
    "project_folder",
    "project_settings",
    "read_allowed",
    "refusal",
    "setting",
]
