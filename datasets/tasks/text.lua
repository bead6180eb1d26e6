-- text: perplexity of running text.
--
-- Plain text files are one row; .jsonl, .json and .csv files give the field `text` of each row; .zst is unpacked. Another
-- field, or another reading, is a copy of this file with other values: `moec eval MODEL --data FILE --task my_task.lua`.
return {
  name = "text",
  metric = "perplexity",
  rows = {
    format = "auto", -- auto | text | jsonl | csv | json
    split = "file", -- of plain text: file | line | paragraph
  },
  prompt = "{text}", -- {field} is replaced by the row's field
}
