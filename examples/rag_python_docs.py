"""RAG over Python's language reference: retrieval by SQLite's full-text search (BM25), spans sent as soon as found."""

import re
import sqlite3
from pydoc_data.topics import topics

from minipic_sdk import Document, MiniPIC, Prompt

QUESTIONS = (
    "What does the with statement do?",
    "When is the finally clause executed?",
    "What does the assert statement do?",
    "What is the difference between finally and else in a try statement?",
)


def index() -> sqlite3.Connection:
    """Paragraphs of the reference, as a full-text table."""
    table = sqlite3.connect(":memory:")
    table.execute("create virtual table passages using fts5(name, text)")
    for topic, text in sorted(topics.items()):
        for number, paragraph in enumerate(" ".join(p.split()) for p in text.split("\n\n")):
            if 200 <= len(paragraph) <= 900:
                table.execute("insert into passages values (?, ?)", (f"{topic}#{number}", paragraph))
    return table


def retrieve(table: sqlite3.Connection, question: str, count: int = 4) -> list[Document]:
    """The best passages for the words of a question."""
    words = " OR ".join(f'"{w}"' for w in re.findall(r"\w{4,}", question))
    sql = "select name, text from passages where passages match ? order by bm25(passages) limit ?"
    return [Document(text, name=name) for name, text in table.execute(sql, (words, count))]


def main() -> None:
    table = index()
    with MiniPIC() as client:
        profile = client.profile()
        for question in QUESTIONS:
            documents = retrieve(table, question)
            client.prefetch(documents)  # the engine begins; meanwhile the prompt is composed
            prompt = Prompt.compose(documents, question, profile=profile)
            result = client.generate(prompt, max_tokens=40, temperature=0)
            print(f"\n{question}\n  {' '.join(result.text.split())}")
            for span in result.spans:
                print(f"  {span.status:9} {span.name}{f' ({span.reason})' if span.reason else ''}")
            print(f"  {result.usage.cached_tokens} of {result.usage.prompt_tokens} tokens were cached")


if __name__ == "__main__":
    main()
