-- Which of four lines of a text follows: rows by text_rows.awk.
return {
  name = "line", metric = "accuracy-tokens", rows = { format = "jsonl" }, prompt = "{text}",
  choices = { field = "choices", text = "{choice}" },
}
