-- hellaswag: how a scene goes on (Zellers et al., 2019), JSON lines with activity_label, ctx, endings (a list) and label
-- (0 to 3). Text stands as it is in the file, with marks such as [header].
return {
  name = "hellaswag",
  metric = "accuracy-bytes",
  prompt = "{activity_label}: {ctx}",
  choices = {
    field = "endings",
    text = " {choice}",
    label = "{label}",
  },
}
