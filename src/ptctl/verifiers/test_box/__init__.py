"""Programs of `python_tests` that run inside the box, sent there as text and never imported by ptctl.

    tester.py      holds tests and key, starts the candidate, reports
    candidate.py   runs the policy's code and answers calls
    plain_data.py  the encoding between the two

They use the standard library only and run on Python 3.8 and later, whatever the box has.
"""
