"""An agent whose tools change from turn to turn: each description is a span, cached whatever stands around it."""

import json
from typing import Any

from minipic_sdk import MiniPIC


def tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """An OpenAI tool definition; parameters are name="what it is"."""
    properties = {k: {"type": "string", "description": v} for k, v in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = {
    "weather": tool("get_weather", "Tells the weather of a town today and tomorrow.", town="the town's name"),
    "trains": tool("find_trains", "Lists trains between two stations.", start="where from", end="where to"),
    "convert": tool("convert_money", "Converts an amount of money.", amount="how much", currency="ISO code"),
    "notes": tool("write_note", "Keeps a note for later.", text="what to keep"),
}
TURNS = (
    ("What is the weather in Corvane?", ("weather", "trains")),
    ("Is there a train from Averby to Corvane?", ("notes", "trains", "weather")),
    ("What are 40 crowns in euros?", ("convert", "weather", "notes", "trains")),
)


def main() -> None:
    messages: list[dict[str, Any]] = []
    with MiniPIC() as client:
        for question, names in TURNS:
            messages.append({"role": "user", "content": question})
            result = client.chat(messages, tools=[TOOLS[n] for n in names], max_tokens=48, temperature=0)
            messages.append(result.message)
            print(f"\n{question}  (tools: {', '.join(names)})")
            for call in result.tool_calls:
                print(f"  calls {call.name}({call.arguments})")
                answer = {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"answer": "no data"})}
                messages.append(answer)
            print(f"  {' '.join((result.content or '').split())}")
            print("  " + ", ".join(f"{s.name} {s.status}" for s in result.spans))
            print(f"  {result.usage.cached_tokens} of {result.usage.prompt_tokens} tokens were cached")


if __name__ == "__main__":
    main()
