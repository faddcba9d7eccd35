"""The backends that come with async_orch, found by it through entry points like any third party's."""
