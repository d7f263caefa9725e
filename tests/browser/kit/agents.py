"""The agent whose console is looked at."""

from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]

#: what the offline model says besides what it says by itself
SCRIPT = """
rules:
  - when: {text: wait at}
    reply:
      text: "Let me **see** first."
      tool_calls: [{name: Gate-wait, arguments: '{"path": "GATE"}'}]
  - {when: {tool_result: true, result_of: Gate-wait}, reply: The gate is open now.}
"""


def agent(**spec: Any) -> dict[str, Any]:
    return {
        "agent": {"plugins": ["Files", "Gate"]},
        "console": {"enabled": True},
        "auth": {"provider": "mock", "options": {"approver_users": ["carol"], "auditor_users": ["dave"]}},
        **spec,
    }


ENVIRONMENT = {
    "TA_PLUGIN_MODULE": str(HERE / "custom_plugins.py"),
    "TA_PLUGIN_CATALOG_FILE": str(HERE / "catalogue.json"),
}
