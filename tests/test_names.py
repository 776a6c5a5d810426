"""One name, one thing: a search for a class finds that class."""

import ast
from collections import defaultdict

from tests.house import ROOT, modules


def test_no_two_classes_of_the_product_share_a_name() -> None:
    places = defaultdict(list)
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert shared == {}
