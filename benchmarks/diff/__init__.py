"""Where two trainings part: tdbg beside hashes, hooks by hand and dumps."""
