"""A conversation whose documents come, go and change order; they stay cached, and so does what was said before."""

from typing import Any

from minipic_sdk import Document, MiniPIC

TOWNS = {
    name: Document(text, name=name)
    for name, text in {
        "averby": "Averby lies on the river Tolm. Its market is held on Tuesdays, and its bridge has seven arches.",
        "brindle": "Brindle is known for its clocks. The oldest one was built by Ada Quist in the year 1702.",
        "corvane": "Corvane stands on a cliff. Its lighthouse keeper, Tomas Ebel, has a grey cat called Soot.",
    }.items()
}
TURNS = (
    ("Which town is known for clocks?", "averby brindle"),
    ("Who built the oldest one?", "averby brindle"),
    ("What is the lighthouse keeper's cat called?", "corvane brindle"),
    ("And on which day is the market in Averby?", "corvane averby brindle"),
)


def main() -> None:
    messages: list[dict[str, Any]] = []
    with MiniPIC() as client:
        for question, names in TURNS:
            messages.append({"role": "user", "content": question})
            documents = [TOWNS[name] for name in names.split()]
            with client.chat(messages, documents=documents, max_tokens=32, temperature=0, stream=True) as stream:
                print(f"\n{question}\n  ", end="")
                for chunk in stream:
                    print(chunk.text, end="", flush=True)
                result = stream.result()
            messages.append(result.message)
            print("\n  " + ", ".join(f"{s.name} {s.status}" for s in result.spans))
            print(f"  {result.usage.cached_tokens} of {result.usage.prompt_tokens} tokens were cached")


if __name__ == "__main__":
    main()
