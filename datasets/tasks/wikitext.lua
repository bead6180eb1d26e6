-- wikitext: perplexity of WikiText, whole.
--
-- The file is one text, as published: articles follow each other with their headings, and windows of --seq-len tokens
-- without overlap go across them. Perplexities of the tokenised variant, with <unk>, and of the raw one are not
-- comparable.
return {
  name = "wikitext",
  metric = "perplexity",
  rows = {
    format = "text",
    split = "file",
  },
  prompt = "{text}",
}
