import _mockpkg

_mockpkg.install(__name__)
__version__ = "3.9.0"


def cdiv(a, b):
    return -(a // -b)


def next_power_of_2(n):
    return 1 << (n - 1).bit_length() if n > 0 else 1
