"""The agent whose console is looked at."""

import json
from pathlib import Path
from typing import Any

from tealagents.testing.service import ServiceThread

HERE = Path(__file__).parents[1]

#: a picture of one point, as base64
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

#: a list that the offline model answers with
TEXTS = ["__init__", "❤️", *map(str, range(40))]

#: what the offline model says besides what it says by itself
SCRIPT = """
rules:
  - when: {text: wait at}
    reply:
      text: "Let me **see** first."
      tool_calls: [{name: Gate-wait, arguments: '{"path": "GATE"}'}]
  - when: {tool_result: true, result_of: Files-rotate, text: and tidy}
    reply: {tool_calls: [{name: Files-delete, arguments: {path: old log}}]}
  - when: rotate the log
    reply:
      text: "I would rotate it."
      tool_calls: [{name: Files-rotate, arguments: '{"path": "log"}'}]
  - when: tidy up
    reply:
      text: "I would tidy up."
      tool_calls: [{name: Files-delete, arguments: {path: log}}, {name: Files-list, arguments: {}}]
  - {when: columns please, reply: "1990. x\\n\\n|a|b|c|\\n|-|-:|:-:|\\n|1|2|3|\\n\\n```\\ncode\\n```"}
  - when: breaks please
    reply: |
      |a|b|
      |-|-|
      |one<br>two<BR/>three<br />four|`<br>` <br class=x> </br>|

      a line

      <br>

      <br onclick=x>
  - when: width please
    reply: |
      1. one

         ```
         call(with_arguments, of_which, there_are, more_than, a_phone_is_wide)
         ```

      > |a_heading_without_a_place_to_break|b_heading_without_a_place_to_break|
      > |-|-|
      > |1|2|

      What comes after them is not as wide, and is broken where the window ends.
  - {when: json please, reply: '{"name": "__init__", "glob": "*.py, *.js", "at": ["https://example.com/a"]}'}
  - {when: a list of texts, reply: 'TEXTS'}
  - {when: json that is cut off, reply: {text: '{"name": "__init__", "glob": "*.p', finish_reason: length}}
  - {when: refuse this, reply: {error: {status: 400, message: No.}}}
  - {when: WWWWWWWWWW, reply: "LONGWORD"}
  - {when: a long story, reply: {text: Once upon a time, finish_reason: length}}
  - {when: a bad story, reply: {text: There was a, finish_reason: content_filter}}
  - {when: {tool_result: true, result_of: Gate-wait}, reply: The gate is open now.}
""".replace("LONGWORD", "W" * 20_000).replace("TEXTS", json.dumps(TEXTS, ensure_ascii=False))


def agent(**spec: Any) -> dict[str, Any]:
    return {
        "agent": {"plugins": ["Files", "Gate"]},
        "console": {"enabled": True},
        "protocols": ["openai"],
        "auth": {"provider": "mock", "options": {"approver_users": ["carol"], "auditor_users": ["dave"]}},
        **spec,
    }


ENVIRONMENT = {
    "TA_PLUGIN_MODULE": str(HERE / "custom_plugins.py"),
    "TA_PLUGIN_CATALOG_FILE": str(HERE / "catalogue.json"),
}


def talk(service: ServiceThread, *texts: str, user: str = "ada", **more: Any) -> list[dict[str, Any]]:
    """The answers to messages of one task."""
    answers: list[dict[str, Any]] = []
    with service.client(user) as client:
        for text in texts:
            task = {"task_id": answers[-1]["task_id"]} if answers else more
            body = {"items": [{"content_type": "text", "content": text}], **task}
            answers.append(client.post("", json=body).raise_for_status().json())
    return answers
