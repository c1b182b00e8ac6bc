"""The room that joins the others: open topics, publishing, reading, and what keeps them in order."""
