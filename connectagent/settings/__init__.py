"""Settings of a process and of a project, and what of a project's file needs the person's word."""

from connectagent.settings.values import (
    SETTINGS,
    asked_by,
    check_allowed,
    check_file,
    co_folder,
    enabled,
    named_plugins,
    overrides,
    project_file,
    project_folder,
    project_settings,
    refusal,
    setting,
)

__all__ = [
    "SETTINGS",
    "asked_by",
    "check_allowed",
    "check_file",
    "co_folder",
    "enabled",
    "named_plugins",
    "overrides",
    "project_file",
    "project_folder",
    "project_settings",
    "refusal",
    "setting",
]
