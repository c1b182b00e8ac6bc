"""What Prometheus gets out of the text of a scrape."""

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


class Scrape:
    """Read strictly: a family in two places, or a series that stands there twice, is refused."""

    def __init__(self, text: bytes) -> None:
        found = list(text_string_to_metric_families(text.decode()))
        self.families: dict[str, Metric] = {
            one.name + ("_total" if one.type == "counter" else ""): one for one in found
        }
        """By the name in the text, which for a counter is not the one the parser gives."""
        assert len(self.families) == len(found), "a family stands in two places"
        samples = [sample for family in found for sample in family.samples]
        self.samples: dict[tuple[str, Labels], float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value for sample in samples
        }
        assert len(self.samples) == len(samples), "a series stands there twice"

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset(labels.items())]

    def series(self, name: str) -> dict[Labels, float]:
        return {labels: value for (found, labels), value in self.samples.items() if found == name}

    def rows(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Its series by the values of these labels."""
        return {tuple(dict(found)[label] for label in labels): value for found, value in self.series(name).items()}

    def counted(self) -> dict[tuple[str, Labels], float]:
        """What may not decrease."""
        names = {
            sample.name
            for name, family in self.families.items()
            if name.startswith("goqueue_") and family.type in ("counter", "histogram")
            for sample in family.samples
        }
        return {series: value for series, value in self.samples.items() if series[0] in names}
