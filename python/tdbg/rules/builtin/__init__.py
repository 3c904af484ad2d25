"""The rules that come with tdbg, by the class of problem that they find."""
