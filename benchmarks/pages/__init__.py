"""What pages say of kept results: the answer first, then tables.

A function yields the paragraphs and tables of one benchmark from its kept runs, the last one last,
and describes the last. `benchmarks.summary` writes them between the markers of the page.
"""
