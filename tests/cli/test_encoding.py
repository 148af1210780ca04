"""Texts that are not UTF-8, without a byte order mark: in which encoding they are read."""

import pytest

from minipic_cli.corpus.encoding import guess
from minipic_cli.documents import read_documents

WESTERN = {
    "French": "Les élèves ont déjà visité le musée, où ils ont été très impressionnés par les œuvres. C’était « très beau ».",
    "French, a sentence": "Le garçon a mangé une crêpe à la fête de Noël.",
    "German": "Größe und Maß: für jede Übung eine Prüfung. „Schön“, sagte er – und ging über die Straße.",
    "English": "It’s a “smart” quote test — the café’s résumé was naïve.",
    "English, one letter": "The committee met on Tuesday to discuss the opening hours. They had lunch at the café.",
    "English, quotes": "The shop’s hours are “nine to five” – don’t be late.",
    "Spanish": "El niño comió una piña mañana. ¿Dónde está el señor?",
    "Portuguese": "A informação não está disponível. Amanhã às três horas, na estação de São Paulo.",
    "Italian": "Perché la città è così bella? Il caffè è buono.",
    "Swedish": "Jag är från Göteborg och åker båt på sjön varje dag. Hälsningar från Malmö.",
    "Danish": "Rødgrød med fløde på. Hvordan går det i København? Æblerne er røde.",
    "Finnish": "Hyvää päivää! Tämä on hyvä kirja, jonka ääressä yö kuluu.",
}
CENTRAL = {
    "Polish": "Zażółć gęślą jaźń. W Łodzi świeciło słońce, a dzieci bawiły się na ulicy.",
    "Polish, a sentence": "Dziękuję bardzo, proszę pana. Jutro będzie ładna pogoda.",
    "Polish, plain": "Dostawa kosztuje 4 euro i trwa dwa dni. Zwrotów można dokonać w ciągu 30 dni.",
    "Czech": "Příliš žluťoučký kůň úpěl ďábelské ódy. Dnes je v Praze hezky, ale zítra má pršet.",
    "Czech, a sentence": "Můj dům stojí u řeky.",
    "Slovak": "Ďakujem, mám sa dobre. Kôň beží po lúke a dieťa sa hrá pri ceste.",
    "Hungarian": "A szállítás két napig tart. Köszönjük a türelmüket, és várjuk önöket nyitvatartási időben.",
    "Croatian": "Dobar dan! Kuća je blizu škole, a djeca čekaju mamu koja će doći iz Zagreba.",
    "Romanian": "Mulţumesc, mâncarea a fost foarte bună. Copiii învaţă la şcoală.",
}
OTHER = {
    "cp1251": "Доставка стоит четыре евро и занимает два дня.",
    "cp1253": "Η παράδοση κοστίζει τέσσερα ευρώ και διαρκεί δύο ημέρες.",
    "cp1254": "Teslimat dört euro tutar ve iki gün sürer. Şimdi öğle yemeği yiyeceğiz, sağ olun.",
    "cp1257": "Pristatymas kainuoja keturis eurus ir trunka dvi dienas. Ačiū už jūsų kantrybę.",
    "iso8859_2": "Příliš žluťoučký kůň úpěl ďábelské ódy. Dnes je v Praze hezky, ale zítra má pršet.",
    "shift_jis": "配送料は四ユーロです。二日かかります。",
    "gbk": "送货费用为四欧元，需要两天时间。",
}
ALL = [("cp1252", t) for t in WESTERN.values()] + [("cp1250", t) for t in CENTRAL.values()] + list(OTHER.items())


@pytest.mark.parametrize(("encoding", "text"), ALL, ids=[*WESTERN, *CENTRAL, *OTHER])
@pytest.mark.parametrize("times", [1, 300])
def test_it_is_read_as_it_was_written(encoding: str, text: str, times: int) -> None:
    data = (text + "\n").encode(encoding) * times
    guessed = guess(data)
    assert guessed is not None
    assert data.decode(guessed) == (text + "\n") * times


def test_a_note_says_how_it_was_read(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(WESTERN["French"].encode("cp1252"))
    assert read_documents([path])[0].text == WESTERN["French"]
    assert f"{path} is not UTF-8: read as cp1252 (--encoding overrides)" in capsys.readouterr().err


def test_foreign_names_do_not_change_it() -> None:
    text = WESTERN["German"] * 40 + " Señor Muñoz, Curaçao, Ålesund, à la carte. " + WESTERN["German"] * 40
    assert guess(text.encode("cp1252")) == "cp1252"


def test_what_is_no_text_is_not_told() -> None:
    assert guess(bytes(range(0x100)) * 4) is None
