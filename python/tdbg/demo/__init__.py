"""The demonstration: a healthy and a sick training of real handwritten digits.

Needs the ``demo`` extra (torch and scikit-learn).  ``tdbg demo`` runs it.
"""
