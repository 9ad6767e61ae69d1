"""The version, written once: CMake and the package's metadata read it from here."""

__version__ = "0.2.0"
