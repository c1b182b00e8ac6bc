"""An expression that cannot be right is told as what was typed."""

import pytest
from pyspark.sql import SparkSession

from goqueue.model.errors import InvalidRequest
from goqueue.spark.pipelines.filters import where


def test_an_expression_keeps_rows_or_is_refused_in_a_line(spark: SparkSession) -> None:
    rows = spark.range(10)
    assert where(rows, None).count() == 10
    assert where(rows, "id > 6").count() == 3
    for wrong in ("nonsense = 1", "id >", "id + 1"):
        with pytest.raises(InvalidRequest, match=r"^where is '(nonsense = 1|id >|id \+ 1)': \[[^\n]*$"):
            where(rows, wrong)
