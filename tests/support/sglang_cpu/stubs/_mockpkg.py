"""Generic mock package support (own code): any attribute / submodule resolves."""

import sys, types, importlib.machinery, importlib.abc


class _Loader(importlib.abc.Loader):
    def create_module(self, spec):
        return Mock(spec.name)

    def exec_module(self, m):
        pass


class _Meta(type):
    def __getattr__(c, n):
        if n.startswith("__"):
            raise AttributeError(n)
        v = c.__name__ + "." + n
        setattr(c, n, v)
        return v


class Mock(types.ModuleType):
    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []
        self.__package__ = name
        self.__file__ = __file__

    def __getattr__(self, n):
        if n.startswith("__") and n.endswith("__"):
            raise AttributeError(n)
        full = self.__name__ + "." + n
        if n[:1].isupper():
            v = _Meta(n, (), {"__module__": self.__name__, "__init__": lambda s, *a, **k: None})
        else:
            v = sys.modules.get(full) or Mock(full)
        setattr(self, n, v)
        return v

    def __call__(self, *a, **k):
        if len(a) == 1 and callable(a[0]) and not k:
            return a[0]
        return lambda f: f

    def __bool__(self):
        return False


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, root):
        self.root = root

    def find_spec(self, name, path=None, target=None):
        if name.startswith(self.root + "."):
            return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)


def install(name):
    m = sys.modules[name]
    m.__class__ = Mock if isinstance(m, types.ModuleType) else m.__class__
    sys.meta_path.insert(0, Finder(name))
