-- Which word of a line follows: rows by text_rows.awk.
return {
  name = "word", metric = "exact-match", rows = { format = "jsonl" }, prompt = "{text}", reference = "{word}",
  answer = { tokens = 8, take = "word" },
}
