"""Pieces of templates, rendered by moec and by jinja2 set up as transformers does, must give the same texts.

    python3 tests/live/compare_jinja.py        (needs jinja2; build/tools/render_chat)

A piece that only one of the two gives a text for is a failure too, unless moec says that it is not supported.
"""

import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(77)

TOOL = pathlib.Path(os.environ.get("MOEC_BUILD", "build")) / "tools/render_chat"
TREE = [
    {"name": "a", "children": [{"name": "b", "children": []}, {"name": "c", "children": [{"name": "d"}]}]},
    {"name": "e"},
]
VARIABLES = {"tree": TREE, "name": "Zoë", "list": [1, 2.5, "x", None, True], "n": 42, "d": {"k": "v", "m": 7}}

CALLS = [
    "{% macro box(t) %}[{{ t }}:{{ caller() }}]{% endmacro %}{% call box('x') %}in {{ name }}{% endcall %}",
    "{% macro each(l) %}{% for i in l %}{{ caller(i, loop.index) }};{% endfor %}{% endmacro %}"
    "{% call(i, k=0) each(list) %}{{ k }}={{ i }}{% endcall %}",
    "{% macro f() %}{{ caller is defined }}{{ caller }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% if caller %}{{ caller() }}{% else %}none{% endif %}{% endmacro %}{{ f() }}{% call f() %}y{% endcall %}",
    "{% macro f() %}no{% endmacro %}{% call f() %}y{% endcall %}",
    "{% macro f(caller=none) %}{{ caller() if caller else 'n' }}{% endmacro %}{{ f() }}{% call f() %}y{% endcall %}",
    "{% macro f(caller) %}{{ caller() }}{% endmacro %}{{ f() }}",
    "{% macro a() %}<{{ caller() }}>{% endmacro %}{% macro b() %}({% call a() %}{{ caller() }}{% endcall %}){% endmacro %}"
    "{% call b() %}x{% endcall %}",
    "{% macro a() %}<{{ caller() }}>{% endmacro %}{% macro b() %}({% set c = caller %}{% call a() %}{{ c() }}{% endcall %})"
    "{% endmacro %}{% call b() %}x{% endcall %}",
    "{% set v = 1 %}{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{{ v }}{% set v = 2 %}{{ v }}{% endcall %}{{ v }}",
    "{% macro f() %}{{ caller(1) }}{% endmacro %}{% call f() %}y{% endcall %}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{% call(a) f() %}{{ a }}y{% endcall %}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}G{% endmacro %}{{ f(caller=g) }}",
    "{% macro g() %}G{% endmacro %}{% macro f() %}n{% endmacro %}{{ f(caller=g) }}",
    "{% call range(3) %}x{% endcall %}",
    "{% call name %}x{% endcall %}",
    "{% call missing() %}x{% endcall %}",
    "{% call 'a'.upper() %}x{% endcall %}",
    "{% for i in [1, 2] %}{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{{ i }}{{ loop.index }}{% endcall %}{% endfor %}",
    "  {% macro f() -%} m {{ caller() }} {%- endmacro %}\n  {% call f() %}\n  body\n  {% endcall %}\nend",
    "{% macro f() %}{{ caller()|upper }}{% endmacro %}{% call f() %}abc{% endcall %}",
    "{% macro outer() %}{% macro inner() %}{{ caller() }}{% endmacro %}{{ inner() }}{% endmacro %}{% call outer() %}z{% endcall %}",
]
LOOPS = [
    "{% for t in tree recursive %}{{ t.name }}{% if t.children %}({{ loop(t.children) }}){% endif %}{% endfor %}",
    "{% for t in tree recursive %}{{ loop.depth }}{{ loop.depth0 }}{{ loop.index }}{{ loop.last }}{{ t.name }}"
    "{{ loop(t.children) if t.children }}{% endfor %}",
    "{% for t in tree recursive %}{{ t.name }}{{ loop(t.children or []) }}{% else %}.{% endfor %}",
    "{% for t in tree if t.name != 'c' recursive %}{{ t.name }}{{ loop(t.children or []) }}{% endfor %}",
    "{% for t in tree if t.name != 'c' recursive %}{% for i in [1, 2] %}{{ i }}{% endfor %}{{ t.name }}{{ loop(t.children or []) }}{% endfor %}",
    "{% for t in tree recursive %}{% set outer = loop %}{% for c in t.children or [] %}{{ outer([c]) }}{% endfor %}{{ t.name }}{% endfor %}",
    "{% for t in tree %}{{ loop(t.children) }}{% endfor %}",
    "{{ loop([1]) }}",
    "{% for t in tree recursive %}{{ t.name }}{% if t.children %}\n  {{- loop(t.children)|upper }}{% endif %}\n{% endfor %}",
    "{% for t in tree recursive %}{% if loop.depth > 1 %}{% break %}{% endif %}{{ t.name }}{{ loop(t.children or []) }}{% endfor %}",
    "{% set x = 0 %}{% for t in tree recursive %}{% set x = x + 1 %}{{ x }}{{ loop(t.children or []) }}{% endfor %}{{ x }}",
    "{% for k, v in d.items() recursive %}{{ k }}{{ v }}{% if k == 'k' %}{{ loop([(1, 2)]) }}{% endif %}{% endfor %}",
    "{% for t in tree recursive %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{{ loop(t.children or []) }}{% endfor %}",
    "{% macro show(ts) %}{% for t in ts recursive %}<{{ t.name }}{{ loop(t.children or []) }}>{% endfor %}{% endmacro %}{{ show(tree) }}",
    "{% for t in tree recursive %}{{ t.name }}{{ loop() }}{% endfor %}",
    "{% for t in [1] recursive %}{{ loop(3) }}{% endfor %}",
    "{% for recursive in [1, 2] %}{{ recursive }}{% endfor %}",
]
RAWS = [
    "a{% raw %}{{ x }} {% if %} {# c #}{% endraw %}b",
    "a\n  {% raw %}\n  {{ x }}\n  {% endraw %}\nb",
    "a \n  {%- raw -%}\n  {{ x }}\n  {%- endraw -%}\n b",
    "a\n  {%+ raw %}\n  {{ x }}\n  {%+ endraw %}\nb",
    "a {%raw%}{{{%endraw%} b",
    "{% raw %}{% endraw %}",
    "{% raw %}{% raw %}{% endraw %}",
    "{% raw %}x",
    "{% endraw %}",
    "{% raw x %}y{% endraw %}",
    "{% raw %}  {% endraw +%}\nx",
    "x {% raw %} y {% endraw %} \n z",
    "{% raw %}\n{% endraw %}\n\n{% raw %}\n  {% endraw %}",
    "{% if true %}{% raw %}{% endif %}{% endraw %}{% endif %}",
    "{# {% raw %} #}{{ 1 }}",
    "{{ '{% raw %}' }}{{ 2 }}",
    "line\n\t{% raw %}\n\t%}\n\t{% endraw %}\n",
    "{% raw +%}x{% endraw %}",
]
TEXTS = ["%s", "%5s|", "%-5s|", "%.2s|", "%r", "%d", "%05d", "%+d", "% d", "%i", "%u", "%.3d", "%x", "%X", "%o", "%f", "%.2f",
         "%8.3f|", "%-8.1f|", "%e", "%G", "%g", "%c", "%%", "100%", "%q", "%5", "%(k)s", "%(k", "%s %s", "é%sé", "%+.1f", "%08.2f",
         "%s%%", "%-05d|", "%+s", "%ld"]
VALUES = ["name", "n", "-7", "3.75", "true", "none", "list", "d", "'a\"b'", "missing", "1e300", "0"]
FORMATS = [
    *(f"{{{{ '{t}'|format({v}) }}}}" for t, v in itertools.product(TEXTS, VALUES)),
    *(f"{{{{ '{t}' % {v} }}}}" for t, v in itertools.product(TEXTS, VALUES)),
    "{{ '%s-%s'|format(1, name) }}", "{{ '%s'|format() }}", "{{ 'x'|format(1) }}", "{{ '%s-%s' % (1, name) }}", "{{ '%s' % () }}",
    "{{ '%(a)s %(b)5.1f %(a)r'|format(a='x', b=2) }}", "{{ '%(a)s'|format(b=1) }}", "{{ '%(a)s'|format(1, a=2) }}",
    "{{ '%(k)s %(m)d' % d }}", "{{ '%(z)s' % d }}", "{{ '%s' % [1, 2] }}", "{{ '%s' % (d,) }}", "{{ 'a' % d }}", "{{ 'a' % 1 }}",
    "{{ ['%s!', '<%s>']|map('format', name)|join }}", "{{ 5|format }}", "{{ name|format }}",
    "{{ '{} {a} {0}'.format(1, a=name) }}", "{{ '{a}{b}'.format(a=1, b=2) }}", "{{ '{a}'.format(1) }}", "{{ '{}{}'.format(1) }}",
    "{{ '{{}} {}'.format(none) }}", "{{ '{0}{1}{0}'.format('a', 'b') }}",
]
UNSUPPORTED = ["not supported", " here", "64 bits"]
PIECES = [*CALLS, *LOOPS, *RAWS, *FORMATS]


def main():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    n_same = n_refused = n_unsupported = 0
    differ = []
    with tempfile.TemporaryDirectory() as work:
        source, values = pathlib.Path(work) / "piece.jinja", pathlib.Path(work) / "variables.json"
        values.write_text(json.dumps(VARIABLES))
        for piece in PIECES:
            source.write_text(piece)
            ours = subprocess.run([TOOL, source, values], capture_output=True)
            got = ours.stdout.decode() if ours.returncode == 0 else None
            message = ours.stderr.decode().strip()
            try:
                want = environment.from_string(piece).render(**VARIABLES)
            except Exception as error:  # whatever Jinja or Python refuses
                want, message = None, f"{message} ({error})"
            if got == want:
                n_same += got is not None
                n_refused += got is None
            elif got is None and any(text in message for text in UNSUPPORTED):
                n_unsupported += 1
                print(f"not supported: {piece!r}: {message}")
            else:
                differ.append(f"{piece!r}\n    moec: {got!r} {message}\n    jinja2: {want!r}")
    for line in differ:
        print(f"differs: {line}")
    print(f"{len(PIECES)} pieces: {n_same} texts equal, {n_refused} refused by both, {n_unsupported} not supported, "
          f"{len(differ)} differ")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
