"""The instructions of tasks: what templates may do, and that nothing else runs."""

import contextlib
import re
import time
import tracemalloc
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tealagents.api.skagents.templates import LONGEST, MOST_SECONDS, Instructions, TemplateRefused

VALUES: dict[str, Any] = {
    "number": 7,
    "topic": "tea",
    "points": ["hot", "green"],
    "author": {"name": "Ada"},
    "chat_history": [{"role": "user", "content": " hi "}],
    "nothing": None,
    "_first": "A teapot.",
}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("Add {{ number }} and {{ number + 1 }}.\n", "Add 7 and 8."),
        ("{{ '<' + topic + '>' }} {{ 10 - number }} {{ 2.5 * number }}", "<tea> 3 17.5"),
        ("{{ number * 2 }} {{ number / 2 }} {{ number // 2 }} {{ number % 2 }}", "14 3.5 3 1"),
        ("{{ topic|upper }} by {{ author.name }} {{ author['name'] }}", "TEA by Ada Ada"),
        ("{% for m in chat_history %}{{ m.role }}: {{ m.content.strip() }}{% endfor %}", "user: hi"),
        ("{% for p in points %}{{ loop.index }}{% if not loop.last %},{% endif %}{% endfor %}", "1,2"),
        (
            "{{ points|join(' and ') }} {{ points|map('upper')|list|tojson }}",
            'hot and green ["HOT", "GREEN"]',
        ),
        ("{% if nothing is none %}{{ _first }}{% else %}no{% endif %}{{ missing }}", "A teapot."),
        ("{% set t = topic ~ '!' %}{{ t }} {{ points[0] }} {{ points|length }}", "tea! hot 2"),
        ("{{ points }} {{ nothing }} {# a comment #}", "['hot', 'green'] None "),
        ("{{ points|tojson(indent=1) }} {{ topic|replace('t', 'T', 1) }}", '[\n "hot",\n "green"\n] Tea'),
        ("{{ points|sort|first }} {{ 2.567|round(1) }} {{ author|dictsort }}", "green 2.6 [('name', 'Ada')]"),
        ("{{ points|tojson|safe }} {{ '<b>'|safe ~ '<' }}", '["hot", "green"] <b><'),
        ("{% raw %}{{ topic }}{% endraw %}{{ missing|default('none') }}", "{{ topic }}none"),
    ],
)
def test_what_templates_are_for(source: str, text: str) -> None:
    """They fill in, loop, decide and convert."""
    assert Instructions(source).render(VALUES) == text


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ ''.__class__.__mro__ }}", "cannot be read in templates"),
        ("{{ topic['__class__'] }}", "cannot be read in templates"),
        ("{{ topic|attr('__class__') }}", "the filter attr"),
        ("{{ cycler.__init__.__globals__.os }}", "cannot be read in templates"),
        ("{{ lipsum() }}", "only range"),
        ("{{ self.x() }}", "only range"),
        ("{{ topic.format(topic) }}", "only range"),
        ("{{ topic.ljust(99999999) }}", "only range"),
        ("{% set ns = namespace(a='x') %}", "only range"),
        (
            "{{ points|tojson(wide=1) }}",
            "line 1: the filter tojson: got an unexpected keyword argument 'wide'",
        ),
        ("{{ topic|replace('a') }}", "line 1: the filter replace: missing a required argument"),
        ("{{ topic.replace('a', 'b') }}", "replace and join are filters"),
        ("{{ topic|center(99999999) }}", "the filter center"),
        ("{{ points|map('center', 9)|join }}", "line 1: the filter center is not allowed in templates"),
        ("{{ points|map('attr', '__class__')|list }}", "the filter attr"),
        ("{{ points|map('nosuch')|join }}", "the filter nosuch"),
        ("{{ points|map('replace')|join }}", "the filter replace: missing a required argument"),
        ("{{ points|map('map', 'nosuch')|list }}", "the filter nosuch"),
        ("{{ points|select('foo')|list }}", "line 1: the test foo is not allowed in templates"),
        ("{{ points|reject('foo')|list }}", "the test foo"),
        ("{{ points|selectattr('a', 'nosuch')|list }}", "the test nosuch"),
        ("{{ points|rejectattr('a', 'nosuch', 1)|list }}", "the test nosuch"),
        ("{{ 'x' * 99999999 }}", "numbers only"),
        ("{{ 9 ** 99999999 }}", r"line 1: \*\* is not allowed in templates"),
        ("{{ +number }}", r"line 1: \+ before a value is not allowed in templates"),
        ("{{ '%99999999d' % 1 }}", "% is for numbers"),
        ("{{ '%s!' % missing }}", "line 1: % is for numbers only; ~ joins texts"),
        ("{% for p in points %}\n{{ (p ~ '%s') % p }}{% endfor %}", "line 2: % is for numbers"),
        ("{{ missing * '-' }}", r"\* is for numbers only; ~"),
        ("{% if missing %}{{ ['a', 'b'] % missing }}{% endif %}", "% is for numbers"),
        ("{% if missing %}{{ 'a' - missing }}{% endif %}", "- is for numbers"),
        ("{% if missing %}{{ 'a' ~ missing + 1 }}{% endif %}", r"\+ is for numbers and texts"),
        ("{{ missing + [1] }}", r"\+ is for numbers and texts"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "macro is not"),
        ("{% include 'config.yaml' %}", "include is not"),
        ("{% import 'os' as os %}", "import is not"),
        ("{% from 'os' import path %}", "line 1: from is not"),
        ("{% extends 'a' %}", "line 1: extends is not"),
        ("{% block a %}{% endblock %}", "line 1: block is not"),
        ("{% call x() %}{% endcall %}", "line 1: call is not"),
        ("{% with x = 1 %}{% endwith %}", "line 1: with is not"),
        ("{% filter upper %}a{% endfilter %}", "line 1: filter with endfilter is not"),
        ("{% set x %}a{% endset %}", "line 1: set with endset is not"),
        ("{% set topic.x = 1 %}", "line 1: set of an attribute is not"),
        ("a\n{% autoescape true %}{{ topic }}{% endautoescape %}", "line 2: autoescape is not"),
        ("{% for p in points recursive %}{{ loop(points) }}{% endfor %}", "recursive loop"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "steps"),
        ("{% for i in range(99999) %}" + "x" * 101 + "{% endfor %}", "characters"),
        ("{% set a = 'x' * 2 %}{{ a }}", "numbers only"),
        ("{% set a = 'xxxxxxxx' %}" + "{% set a = a ~ a %}" * 40, "characters"),
        ("{% set a = [1] %}" + "{% set a = [a, a] %}" * 40 + "{{ a }}", "set of lists"),
        ("{{ topic", "line 1"),
        ("{% for %}", "line 1"),
        ("{{" * 4000, "nested too deeply"),
        ("{{ " + "(" * 4000 + ")" * 4000 + " }}", "nested too deeply"),
    ],
)
def test_hostile_templates_are_refused_before_anything_is_sent(source: str, why: str) -> None:
    """Whatever values come: the template is refused when it is compiled, at once."""
    began = time.thread_time()
    with pytest.raises(TemplateRefused, match=why):
        Instructions(source)
    assert time.thread_time() - began < 30


def test_what_may_be_used_is_said_where_something_else_is() -> None:
    """A refusal names all filters or methods, and the page has both lists and what else is refused."""
    page = " ".join((Path(__file__).parents[2] / "docs/earlier.md").read_text().split())
    for use, word in (("|center(9)", "these filters"), (".ljust(9)", "these methods")):
        with pytest.raises(TemplateRefused) as refused:
            Instructions("{{ topic" + use + " }}")
        said = str(refused.value).rpartition(": ")[2].partition(";")[0].split(", ")
        listed = page.partition(f"{word} (")[2].partition(")")[0]
        assert re.findall(r"`(\w+)`", listed) == sorted(said)
        assert "upper" in said


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("{% for a in long %}{% for b in long %}{% endfor %}{% endfor %}", {"long": [0] * 10_000}),
        ("{{ long }}", {"long": "x" * (LONGEST + 1)}),
        ("{{ text|replace('', text) }}", {"text": "x" * 10_000}),
        ("{{ many|join(text) }}", {"text": "x" * 10_000, "many": [1] * 1_000}),
        ("{{ text % 1 }}", {"text": "%99999999d"}),
        ("{% for i in range(count) %}x{% endfor %}", {"count": 10**9}),
        ("{{ number / 0 }}", {"number": 1}),
        ("{{ number + topic }}", {"number": 1, "topic": "x"}),
        ("{{ author.name.first }}", {"author": {}}),
        ("{{ points + points }}", {"points": [1]}),
        ("{{ big * big }}", {"big": 10**30}),
        ("{{ tags|sort|first }}", {"tags": ["a"] * 200_000}),
        ("{{ tags|map('upper')|unique|list|length }}", {"tags": ["a"] * 200_000}),
        ("{{ points|tojson(indent=wide) }}", {"points": [1], "wide": 10**9}),
        ("{{ number|round(digits, 'ceil') }}", {"number": 1.5, "digits": 10**9}),
        ("{{ rows|sort|length }}", {"rows": [[1] * 1000] * 101}),
        ("{{ rows|sort(attribute='points')|length }}", {"rows": [{"points": [1] * 1000}] * 101}),
        ("{{ rows|groupby('points')|length }}", {"rows": [{"points": [1] * 1000}] * 101}),
        ("{{ keyed|dictsort(by='value')|length }}", {"keyed": {f"{n}": [1] * 1000 for n in range(101)}}),
    ],
)
def test_hostile_values_are_refused(source: str, values: dict[str, Any]) -> None:
    """What was sent never makes a template take more than it may, or reach what it may not."""
    with pytest.raises(TemplateRefused) as refused:
        Instructions(source).render(values)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "use",
    [
        *("|capitalize", "|e", "|escape", "|lower", "|striptags", "|title", "|trim", "|upper", "|wordcount"),
        *(".capitalize()", ".isdigit()", ".lower()", ".lstrip()", ".rstrip()", ".split()", ".splitlines()"),
        *(".strip()", ".title()", ".upper()"),
    ],
)
def test_a_longer_text_than_may_be_made_is_not_worked_on(use: str) -> None:
    """Also where little would come of it, and where `map` names the filter."""
    sources = [f"{{{{ (text{use})|string|length }}}}"]
    if use.startswith("|"):
        sources += [f"{{{{ [text]|map('{use[1:]}')|first|string|length }}}}"]
    for source in sources:
        template = Instructions(source)
        template.render({"text": "a " * (LONGEST // 2)})
        with pytest.raises(TemplateRefused, match=f"^produces more than {LONGEST:,} characters$"):
            template.render({"text": "a " * (LONGEST // 2) + "a"})


@pytest.mark.parametrize(
    "use",
    [
        "(text ~ text)|length",
        "'a' ~ (text ~ (text ~ 'b'))|length",
        "[text, text]|string|length",
        "[text, {'b': (1, text)}]|upper|length",
        "[[text, text]]|join|length",
        "[[text, text]]|map('string')|map('length')|first",
        "[text, text]|replace('a', '')|length",
        "[text, text]",
    ],
)
def test_a_text_that_is_put_together_is_measured_first(use: str) -> None:
    """Also if only its length is wanted: a short template may name a long text many times."""
    template = Instructions(f"{{{{ {use} }}}}")
    template.render({"text": "a" * (LONGEST // 3)})
    text = "a" * (LONGEST // 2 + 1)
    tracemalloc.start()
    try:
        with pytest.raises(TemplateRefused, match=f"^produces more than {LONGEST:,} characters$"):
            template.render({"text": text})
        assert tracemalloc.get_traced_memory()[1] < LONGEST
    finally:
        tracemalloc.stop()


def test_joining_looks_at_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    template = Instructions("{{ text ~ text ~ text }}")
    clock = SimpleNamespace(monotonic=count(0, MOST_SECONDS * 0.4).__next__)
    monkeypatch.setattr("tealagents.api.skagents.templates.time", clock)
    with pytest.raises(TemplateRefused, match="takes more than"):
        template.render({"text": "a"})


def test_the_beginning_of_a_long_text_can_be_used() -> None:
    """It takes no time."""
    template = Instructions("{{ text.startswith('ab') }} {{ text|truncate(6) }} {{ text[:2] }}")
    assert template.render({"text": "ab " * LONGEST}) == "True ab... ab"


@pytest.mark.parametrize("source", ["{{ text|trim(chars)|length }}", "{{ text.strip(chars)|length }}"])
def test_each_character_is_looked_for_among_few(source: str) -> None:
    """Two long texts would take minutes."""
    template = Instructions(source)
    assert template.render({"text": "a" * 200_000, "chars": "ba"}) == "0"
    with pytest.raises(TemplateRefused, match="takes more than"):
        template.render({"text": "a" * 500_000, "chars": "b" * 500_000 + "a"})


@pytest.mark.parametrize(
    "source", ["{{ text|title }}{{ text|title }}", "{{ text.title() }}{{ text.title() }}"]
)
def test_work_on_texts_looks_at_the_time(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template = Instructions(source)
    clock = SimpleNamespace(monotonic=count(0, MOST_SECONDS * 0.75).__next__)
    monkeypatch.setattr("tealagents.api.skagents.templates.time", clock)
    with pytest.raises(TemplateRefused, match="takes more than"):
        template.render({"text": "a b"})


@pytest.mark.parametrize(
    "source",
    [
        "{% for row in rows|sort(attribute='name,number') %}{{ row.name }}{% endfor %}",
        "{% for group in rows|groupby('name') %}{{ group.grouper }}{% endfor %}",
        "{% for name, _ in keyed|dictsort %}{{ name }}{% endfor %}",
    ],
)
def test_sorting_by_a_short_field_counts_that_field_and_not_the_lists_beside_it(source: str) -> None:
    """Only what is compared takes time."""
    points = [1] * 10_000
    rows = [{"name": f"n{n}", "number": n, "points": points} for n in (2, 1, *range(3, 20))]
    given = {"rows": rows, "keyed": {row["name"]: points for row in rows}}
    assert Instructions(source).render(given).startswith("n1n10")


def test_a_sorted_value_is_one_step() -> None:
    assert Instructions("{{ (rows|sort)[0] }}").render({"rows": [*range(60_000, 0, -1)]}) == "1"


@pytest.mark.parametrize(
    "source",
    [
        "{% for name in names|reject('in', names) %}{% endfor %}",
        "{% for name in keyed|reject('in', names) %}{% endfor %}",
        "{{ lists|sum(start=[])|length }}",
        "{{ [lists]|map('sum', start=[])|first|length }}",
        "{{ keyed|dictsort|length }}",
    ],
)
def test_filters_look_at_the_time_for_each_value(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a filter does with one value may take long, also where it lets none of them through."""
    values = {
        "names": [f"{n}" for n in range(1_000)],
        "keyed": {f"{n}": n for n in range(1_000)},
        "lists": [[n] for n in range(1_000)],
    }
    template = Instructions(source)
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr("tealagents.api.skagents.templates.time", clock)
    template.render(values)
    clock.monotonic = count(0, MOST_SECONDS / 100).__next__
    with pytest.raises(TemplateRefused, match="takes more than"):
        template.render(values)


def test_names_that_are_sent_reach_nothing() -> None:
    """A key that is sent finds what else was sent, and no attribute."""
    assert Instructions("{{ key[name] }}").render({"key": "x", "name": "__class__"}) == ""


@given(st.text(alphabet="{}%#|.()[]'\"_~+-*/ abx1=:,<>\n", max_size=60))
def test_any_text_is_a_template_or_refused(source: str) -> None:
    """No text raises anything else, when it is compiled or filled in."""
    with contextlib.suppress(TemplateRefused):
        Instructions(source).render({"a": "x", "b": [1, {"x": None}], "x": {"a": 1}})
