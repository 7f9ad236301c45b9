"""Who reads a setting: a walk over the source that knows the types, so that a namesake elsewhere does not count.

Types come from annotations alone: those of parameters, of fields and of what functions return, carried on through
assignments, loops and calls. What cannot be told is unknown and counts as nothing read, so a mistake here shows as an
unread setting, never as a read one. Reads inside the settings package count only in functions and properties that
somebody outside it uses for something else than loading.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Instance:
    """A value of a class of this source."""

    cls: str


@dataclass(frozen=True, slots=True)
class ClassItself:
    cls: str


@dataclass(frozen=True, slots=True)
class Many:
    """A list, set, mapping (its values) or iterator."""

    item: Type


@dataclass(frozen=True, slots=True)
class Row:
    """A tuple of known length."""

    items: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    """Full name; empty for one known by its annotation only."""
    returns: Type


@dataclass(frozen=True, slots=True)
class Text:
    """One of these texts."""

    texts: frozenset[str]


Type = Instance | ClassItself | Many | Row | Function | Text | None
Scope = dict[str, Type]


@dataclass(slots=True)
class Class:
    name: str
    module: Module
    bases: list[ast.expr]
    annotations: dict[str, ast.expr] = field(default_factory=dict)
    methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    learned: Scope = field(default_factory=dict)
    """Attributes without an annotation, by what is assigned to them."""


@dataclass(slots=True)
class Module:
    name: str
    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict)
    classes: dict[str, Class] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    values: dict[str, ast.expr] = field(default_factory=dict)


@dataclass(slots=True)
class Readers:
    """What a walk found."""

    places: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    """Full name of a class and its attribute, or of a module and its function, to the functions that use it."""
    gates: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Gate name to the functions that ask for it."""

    def of(self, cls: str, name: str, *, package: str, loaders: Collection[str] = ()) -> set[str]:
        """Where a field is read outside `package`, directly or through code of it that is used there.

        What is reached through one of the `loaders` alone does not count.
        """
        found: set[str] = set()
        waiting, seen = [(cls, name)], {(cls, name)}
        while waiting:
            for place in self.places.get(waiting.pop(), ()):
                owner, _, function = place.rpartition(".")
                if not place.startswith(f"{package}."):
                    found.add(place)
                elif place not in loaders and (owner, function) not in seen:
                    seen.add((owner, function))
                    waiting.append((owner, function))
        return found


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def modules_of(root: Path, instead: Mapping[str, str]) -> Iterator[Module]:
    """Every hand-written module below a package's folder; `instead` has other texts by path below the folder."""
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if relative.parts[0] == "wire":
            continue
        name = ".".join((root.name, *relative.with_suffix("").parts)).removesuffix(".__init__")
        text = instead.get(relative.as_posix())
        yield _module(name, _parsed(path) if text is None else ast.parse(text))


def _module(name: str, tree: ast.Module) -> Module:
    module = Module(name, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            module.imports.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.Import):
            module.imports.update({alias.asname: alias.name for alias in node.names if alias.asname})
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            module.classes[node.name] = _class(node, module)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            module.functions[node.name] = node
        elif isinstance(node, ast.Assign):
            module.values.update(_assigned(node.targets[0], node.value))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            module.values[node.target.id] = node.value
    return module


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for name, part in zip(target.elts, value.elts, strict=False):
            yield from _assigned(name, part)


def _class(node: ast.ClassDef, module: Module) -> Class:
    found = Class(f"{module.name}.{node.name}", module, node.bases)
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            found.annotations[item.target.id] = item.annotation
        elif isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            found.methods[item.name] = item
    return found


SEQUENCES = frozenset(
    [
        "list",
        "tuple",
        "set",
        "frozenset",
        "Sequence",
        "Iterable",
        "Iterator",
        "Collection",
        "Set",
        "AsyncIterator",
        "Generator",
        "deque",
    ]
)
MAPPINGS = frozenset(["dict", "Mapping", "MutableMapping", "defaultdict", "MappingProxyType"])
SAME = frozenset({"sorted", "list", "tuple", "set", "reversed", "frozenset", "replace", "iter", "next"})
"""Functions that give back the kind of thing they are given; `next` is told by its argument."""


class Source:
    """All modules of a package, and what their names mean."""

    def __init__(self, modules: Iterable[Module], gates: str) -> None:
        """`gates` is the full name of the class of feature gates."""
        self.modules = {module.name: module for module in modules}
        self.gates = gates
        self._classes = {found.name: found for module in self.modules.values() for found in module.classes.values()}

    def readers(self) -> Readers:
        found = Readers()
        # Attributes are learned from constructors, which may use what other constructors taught.
        for _ in range(2):
            found = Readers()
            for module in self.modules.values():
                Walk(self, module, found).whole()
        return found

    def named(self, module: Module, name: str) -> Type:
        """What a name at the top of a module is."""
        if name in module.classes:
            return ClassItself(f"{module.name}.{name}")
        if name in module.functions:
            return Function(f"{module.name}.{name}", self.annotated(module, module.functions[name].returns))
        if name in module.values:
            value = module.values[name]
            return self.made_by(module, value) if isinstance(value, ast.Call) else constant(value)
        target = module.imports.get(name)
        return self.full(target) if target else None

    def made_by(self, module: Module, call: ast.Call) -> Type:
        if isinstance(call.func, ast.Name):
            made = self.named(module, call.func.id)
            if isinstance(made, ClassItself):
                return Instance(made.cls)
        return None

    def full(self, name: str) -> Type:
        if name in self._classes:
            return ClassItself(name)
        owner, _, last = name.rpartition(".")
        return self.named(self.modules[owner], last) if owner in self.modules else None

    def annotated(self, module: Module, node: ast.expr | None) -> Type:
        """The type an annotation names."""
        match node:
            case ast.Constant(value=str(text)):
                return self.annotated(module, ast.parse(text, mode="eval").body)
            case ast.Name(id=name):
                return self._named_type(module, name)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                target = module.imports.get(name)
                found = self.full(f"{target}.{attribute}") if target else None
                return Instance(found.cls) if isinstance(found, ClassItself) else None
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self.annotated(module, left) or self.annotated(module, right)
            case ast.Subscript(value=ast.Name(id=name), slice=inner):
                return self._generic(module, name, inner)
        return None

    def _named_type(self, module: Module, name: str) -> Type:
        found = self.named(module, name)
        if isinstance(found, ClassItself):
            return Instance(found.cls)
        # An alias of a type, here or where it is imported from.
        owner, last = module, name
        if name in module.imports:
            place, _, last = module.imports[name].rpartition(".")
            if place not in self.modules:
                return None
            owner = self.modules[place]
        value = owner.values.get(last)
        return self.annotated(owner, value) if isinstance(value, ast.Subscript | ast.BinOp | ast.Name) else None

    def _generic(self, module: Module, name: str, inner: ast.expr) -> Type:
        parts = list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]
        if name == "tuple" and not (len(parts) == 2 and isinstance(parts[1], ast.Constant)):
            return Row(tuple(self.annotated(module, part) for part in parts))
        if name in SEQUENCES:
            return Many(self.annotated(module, parts[0]))
        if name in MAPPINGS:
            return Many(self.annotated(module, parts[-1]))
        if name == "Callable":
            return Function("", self.annotated(module, parts[-1]))
        if name == "type":
            found = self.annotated(module, parts[0])
            return ClassItself(found.cls) if isinstance(found, Instance) else None
        if name in ("Awaitable", "Annotated", "ClassVar", "Final"):
            return self.annotated(module, parts[0])
        return self._named_type(module, name)

    def lineage(self, cls: str) -> Iterator[Class]:
        """A class and those it inherits from."""
        found = self._classes.get(cls)
        if found is None:
            return
        yield found
        for base in found.bases:
            above = self.annotated(found.module, base)
            if isinstance(above, Instance):
                yield from self.lineage(above.cls)

    def attribute(self, cls: str, name: str) -> Type:
        """The type of an attribute of an instance."""
        for found in self.lineage(cls):
            if name in found.annotations:
                return self.annotated(found.module, found.annotations[name])
            if name in found.methods:
                method = found.methods[name]
                returns = self.annotated(found.module, method.returns)
                is_value = any(
                    isinstance(mark, ast.Name) and mark.id in ("property", "cached_property")
                    for mark in method.decorator_list
                )
                return returns if is_value else Function(f"{found.name}.{name}", returns)
            if name in found.learned:
                return found.learned[name]
        return None


class Walk:
    """Through one module, with what each name is known to be."""

    def __init__(self, source: Source, module: Module, readers: Readers) -> None:
        self._source = source
        self._module = module
        self._readers = readers
        self._place = module.name
        self._self: Class | None = None

    def whole(self) -> None:
        scope: Scope = {}
        for node in self._module.tree.body:
            if isinstance(node, ast.ClassDef):
                self._in_class(node)
            else:
                self._statement(node, scope)

    def _in_class(self, node: ast.ClassDef) -> None:
        self._self = self._module.classes.get(node.name)
        outer, self._place = self._place, f"{self._module.name}.{node.name}"
        scope: Scope = {}
        for item in node.body:
            self._statement(item, scope)
        self._place, self._self = outer, None

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, outer: Scope) -> None:
        scope = dict(outer)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for argument in arguments:
            scope[argument.arg] = self._source.annotated(self._module, argument.annotation)
        if node.args.vararg:
            scope[node.args.vararg.arg] = Many(self._source.annotated(self._module, node.args.vararg.annotation))
        if self._self and arguments and arguments[0].arg in ("self", "cls"):
            kind = Instance if arguments[0].arg == "self" else ClassItself
            scope[arguments[0].arg] = kind(self._self.name)
        # A function inside another counts as the outer one, which is what others can name.
        before = self._place
        top = before in (self._module.name, self._self.name if self._self else "")
        self._place = f"{before}.{node.name}" if top else before
        for default in (*node.args.defaults, *(part for part in node.args.kw_defaults if part)):
            self.type_of(default, scope)
        for statement in node.body:
            self._statement(statement, scope)
        self._place = before

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if self._place not in (self._module.name, self._self.name if self._self else ""):
                    scope[node.name] = Function("", self._source.annotated(self._module, node.returns))
                self._function(node, scope)
            case ast.Assign(targets=targets, value=value):
                found = self.type_of(value, scope)
                for target in targets:
                    self._bind(target, found, scope)
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                found = self.type_of(value, scope) if value is not None else None
                self._bind(target, self._source.annotated(self._module, annotation) or found, scope)
            case ast.For(target=target, iter=iterable) | ast.AsyncFor(target=target, iter=iterable):
                self._bind(target, item_of(self.type_of(iterable, scope)), scope)
                self._inside(node, scope)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    found = self.type_of(item.context_expr, scope)
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars, item_of(found) if isinstance(found, Many) else found, scope)
                self._inside(node, scope)
            case _:
                self._inside(node, scope)

    def _inside(self, node: ast.AST, scope: Scope) -> None:
        """Statements and expressions of a compound statement, in their order."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self._statement(child, scope)
            elif isinstance(child, ast.expr):
                self.type_of(child, scope)
            elif isinstance(child, ast.ExceptHandler | ast.match_case | ast.withitem):
                self._inside(child, scope)

    def _bind(self, target: ast.expr, found: Type, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                scope[name] = found
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for position, part in enumerate(parts):
                    known = found.items[position] if isinstance(found, Row) and position < len(found.items) else None
                    self._bind(part, known if isinstance(found, Row) else item_of(found), scope)
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if self._self and found is not None:
                self._self.learned[name] = found

    def type_of(self, node: ast.expr, scope: Scope) -> Type:
        """The type of an expression; notes every read below it on the way."""
        match node:
            case ast.Name(id=name):
                found = scope[name] if name in scope else self._source.named(self._module, name)
                if isinstance(found, Function) and found.name:
                    self._note(*found.name.rsplit(".", 1))
                return found
            case ast.Constant():
                return constant(node)
            case ast.Attribute(value=value, attr=name):
                return self._attribute(self.type_of(value, scope), value, name)
            case ast.Call():
                return self._call(node, scope)
            case ast.Tuple(elts=parts):
                return Row(tuple(self.type_of(part, scope) for part in parts))
            case ast.List(elts=parts) | ast.Set(elts=parts):
                return Many(either([self.type_of(part, scope) for part in parts]))
            case ast.Dict(keys=keys, values=values):
                for key in filter(None, keys):
                    self.type_of(key, scope)
                return Many(either([self.type_of(value, scope) for value in values]))
            case ast.Subscript(value=value, slice=index):
                self.type_of(index, scope)
                return item_of(self.type_of(value, scope))
            case ast.IfExp(test=test, body=body, orelse=other):
                self.type_of(test, scope)
                return either([self.type_of(body, scope), self.type_of(other, scope)])
            case ast.BoolOp(values=values):
                return either([self.type_of(value, scope) for value in values])
            case ast.Await(value=value) | ast.Starred(value=value):
                return self.type_of(value, scope)
            case ast.NamedExpr(target=target, value=value):
                found = self.type_of(value, scope)
                self._bind(target, found, scope)
                return found
        return self._other(node, scope)

    def _other(self, node: ast.expr, scope: Scope) -> Type:
        match node:
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                inner = dict(scope)
                for loop in node.generators:
                    self._bind(loop.target, item_of(self.type_of(loop.iter, inner)), inner)
                    for condition in loop.ifs:
                        self.type_of(condition, inner)
                if isinstance(node, ast.DictComp):
                    self.type_of(node.key, inner)
                    return Many(self.type_of(node.value, inner))
                return Many(self.type_of(node.elt, inner))
            case ast.Lambda(args=arguments, body=body):
                inner = {**scope, **{argument.arg: None for argument in arguments.args}}
                return Function("", self.type_of(body, inner))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.type_of(child, scope)
        return None

    def _attribute(self, owner: Type, value: ast.expr, name: str) -> Type:
        if isinstance(owner, Instance | ClassItself):
            for found in self._source.lineage(owner.cls):
                self._note(found.name, name)
            return self._source.attribute(owner.cls, name)
        if isinstance(value, ast.Name) and value.id in self._module.imports:
            found = self._source.full(f"{self._module.imports[value.id]}.{name}")
            if isinstance(found, Function) and found.name:
                self._note(*found.name.rsplit(".", 1))
            return found
        return None

    def _call(self, node: ast.Call, scope: Scope) -> Type:
        called = self.type_of(node.func, scope)
        arguments = [self.type_of(argument, scope) for argument in node.args]
        arguments += [self.type_of(keyword.value, scope) for keyword in node.keywords]
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("enabled", "switched_off"):
            owner = self.type_of(node.func.value, scope)
            if isinstance(owner, Instance) and owner.cls == self._source.gates and arguments:
                self._ask(arguments[0])
        if isinstance(called, ClassItself):
            return Instance(called.cls)
        if isinstance(called, Function):
            return called.returns
        if isinstance(node.func, ast.Name) and node.func.id in SAME and arguments:
            return item_of(arguments[0]) if node.func.id == "next" else arguments[0]
        if isinstance(node.func, ast.Name) and node.func.id == "enumerate" and arguments:
            return Many(Row((None, item_of(arguments[0]))))
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("values", "get", "items"):
            held = self.type_of(node.func.value, scope)
            if isinstance(held, Many):
                return {"values": held, "get": held.item, "items": Many(Row((None, held.item)))}[node.func.attr]
        return None

    def _ask(self, argument: Type) -> None:
        for gate in argument.texts if isinstance(argument, Text) else ():
            self._readers.gates[gate].add(self._place)

    def _note(self, cls: str, name: str) -> None:
        self._readers.places[cls, name].add(self._place)


def item_of(found: Type) -> Type:
    if isinstance(found, Many):
        return found.item
    if isinstance(found, Row):
        return either(found.items)
    return None


def either(found: Iterable[Type]) -> Type:
    """What one of these values is: any of the texts, or the first type that is known."""
    parts = [part for part in found if part is not None]
    texts = [part.texts for part in parts if isinstance(part, Text)]
    if texts and len(texts) == len(parts):
        return Text(frozenset().union(*texts))
    return next((part for part in parts if not isinstance(part, Text)), None)


def constant(node: ast.expr | None) -> Type:
    """Texts, and tuples, lists and maps of them, that are written out."""
    match node:
        case ast.Constant(value=str(text)):
            return Text(frozenset({text}))
        case ast.Tuple(elts=parts):
            return Row(tuple(constant(part) for part in parts))
        case ast.List(elts=parts) | ast.Set(elts=parts) | ast.Dict(values=parts):
            return Many(either(constant(part) for part in parts))
    return None


def find_readers(root: Path, *, gates: str, instead: Mapping[str, str] | None = None) -> Readers:
    """Walk the package in this folder."""
    return Source(modules_of(root, instead or {}), gates).readers()
