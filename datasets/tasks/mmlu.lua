-- mmlu: questions from 57 subjects (Hendrycks et al., 2021), JSON lines with subject, question, choices (a list) and
-- answer (0 to 3). The choices stand in the prompt; what is scored is the letter.
return {
  name = "mmlu",
  metric = "accuracy",
  prompt = "The following is a multiple choice question (with answer) about {subject}.\n\n{question}\n{choices}Answer:",
  choices = {
    field = "choices",
    list = "{letter}. {choice}\n",
    text = " {letter}",
    label = "{answer}",
  },
}
