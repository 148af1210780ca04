"""A composed prompt through the plain openai client: token ids, and one field in ``extra_body``."""

import os

from openai import OpenAI

from minipic_sdk import MiniPIC, Prompt

DOCUMENTS = [
    "Averby lies on the river Tolm. Its market is held on Tuesdays, and its bridge has seven arches.",
    "Corvane stands on a cliff. Its lighthouse keeper, Tomas Ebel, has a grey cat called Soot.",
]


def main() -> None:
    with MiniPIC() as minipic:  # for the profile only: the application's own client sends the prompts
        profile, url = minipic.profile(), minipic.base_url
    client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("MINIPIC_API_KEY", "none"))
    for documents in (DOCUMENTS, DOCUMENTS[::-1]):
        prompt = Prompt.compose(documents, "What is the cat called?", profile=profile)
        done = client.completions.create(
            model=profile.model, prompt=prompt.token_ids, max_tokens=24, temperature=0, extra_body=prompt.extra_body
        )
        print(" ".join(done.choices[0].text.split()))
        for span in (done.model_extra or {})["kv_transfer_params"]["minipic"]["spans"]:
            print(f"  {span['status']} {span['name']}")
        details = done.usage.prompt_tokens_details if done.usage else None
        print(f"  {details.cached_tokens if details else 0} tokens were cached")


if __name__ == "__main__":
    main()
