"""Executes a notebook in a folder, in a kernel of this Python, and writes it down.

    python execute_notebook.py NOTEBOOK FOLDER RESULT

A program of its own: the loop and the sockets of a kernel's client end with it.
"""

from __future__ import annotations

import sys

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient


class ThisPython(KernelSpecManager):  # type: ignore[misc]
    """The kernel of this environment, whatever is installed elsewhere."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name=kernel_name, language="python")


def main(source: str, folder: str, result: str) -> None:
    """Execute it, and write it with its outputs and the state of its widgets."""
    notebook = nbformat.read(source, as_version=4)
    NotebookClient(
        notebook,
        km=AsyncKernelManager(kernel_spec_manager=ThisPython()),
        timeout=120,
        resources={"metadata": {"path": folder}},
    ).execute()
    nbformat.write(notebook, result)


if __name__ == "__main__":
    main(*sys.argv[1:])
