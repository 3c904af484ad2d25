"""The demonstration: a healthy and a sick training of real handwritten digits.

``tdbg demo`` runs it, for one of ``frameworks.FRAMEWORKS``; the module of a framework
has an ordinary training, whose only part of tdbg is the hook.  Needs the ``demo`` extra
(torch and scikit-learn), or scikit-learn and the extra of another framework.
"""
