import _mockpkg

_mockpkg.install(__name__)
__version__ = "0.29.1"
