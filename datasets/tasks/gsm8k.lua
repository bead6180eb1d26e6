-- gsm8k: sums in words (Cobbe et al., 2021), JSON lines with question and answer. Solutions end in "#### 72": the number
-- behind it is the answer, in the model's text and in the reference. Two solved examples, written for this file, show
-- the form.
return {
  name = "gsm8k",
  metric = "exact-match",
  prompt = [[
Question: A shelf holds 4 rows of 6 jars. 5 jars are taken away. How many jars are left on the shelf?
Answer: The shelf holds 4*6 = 24 jars.
After 5 are taken away, 24-5 = 19 jars are left.
#### 19

Question: Mira walks 3 km to school and back each day, 5 days a week. How many km does she walk in 4 weeks?
Answer: Each day she walks 3*2 = 6 km.
In a week she walks 6*5 = 30 km.
In 4 weeks she walks 30*4 = 120 km.
#### 120

Question: {question}
Answer:]],
  reference = "{answer}",
  answer = {
    tokens = 256,
    stop = { "\n\n", "Question:" },
    take = "number",
    after = "####",
  },
}
