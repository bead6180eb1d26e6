"""Models' chat templates, rendered by moec and by transformers, must give the same texts.

    MOEC_CHAT_TEMPLATES=folder-of-jinja-files python3 tests/live/compare_chat_templates.py

llama-cpp-python's source package has such a folder (vendor/llama.cpp/models/templates). What moec refuses when it
parses a template is counted and printed; a text that differs, or that only one of the two gives, is a failure.
"""

import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import transformers.utils.chat_template_utils as utils
except ImportError as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(77)

FOLDER = os.environ.get("MOEC_CHAT_TEMPLATES")
TOOL = pathlib.Path(os.environ.get("MOEC_BUILD", "build")) / "tools/render_chat"
CONVERSATIONS = json.loads(pathlib.Path("tests/fixtures/chat/conversations.json").read_text())
DATE = datetime.datetime(2026, 11, 22, 13, 5, 9)

# Where the two differ for a reason that chat_template.h names: text beside a `safe` one is escaped by Jinja, and
# its generators fail where lists do not.
KNOWN = {"meetkai-functionary-medium-v3.1.jinja", "llama-cpp-deepseek-r1.jinja"}


def expected(template, variables):
    try:
        return template.render(**variables)
    except Exception:
        return None


def main():
    if FOLDER is None:
        print("1..0 # SKIP no folder of templates ($MOEC_CHAT_TEMPLATES)")
        sys.exit(77)
    n_same = n_both_refuse = n_template = 0
    refused, differ = [], []
    with tempfile.TemporaryDirectory() as work:
        values = pathlib.Path(work) / "variables.json"
        for path in sorted(pathlib.Path(FOLDER).glob("*.jinja")):
            parsed = subprocess.run([TOOL, path, "-"], capture_output=True, text=True)
            if parsed.returncode != 0:
                refused.append(f"{path.name}: {parsed.stderr.strip()}")
                continue
            n_template += 1
            template = utils._compile_jinja_template(path.read_text())
            template.globals["strftime_now"] = DATE.strftime
            for i, conversation in enumerate(CONVERSATIONS):
                variables = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True, **conversation}
                values.write_text(json.dumps(variables))
                ours = subprocess.run([TOOL, path, values], capture_output=True)
                got = ours.stdout.decode() if ours.returncode == 0 else None
                want = expected(template, variables)
                if got != want and path.name not in KNOWN:
                    differ.append(f"{path.name}, conversation {i}: {ours.stderr.decode().strip()}")
                n_both_refuse += got is None and want is None
                n_same += got is not None and got == want
    for line in refused:
        print(f"refused: {line}")
    for line in differ:
        print(f"differs: {line}")
    print(f"{n_template} templates: {n_same} texts equal, {n_both_refuse} refused by both, {len(differ)} differ; "
          f"{len(refused)} templates refused")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
