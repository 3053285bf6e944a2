"""The harness reports the outcome of a test inside."""

from __future__ import annotations

from tests.frameworks.running import Case, names_of_tests, read_report

MODULE = """
import framework_that_is_not_here
def helper(): ...
def test_one(): ...
async def test_two(): ...
class TestThree:
    def test_four(self): ...
class Other:
    def test_five(self): ...
"""

REPORT = """<testsuites><testsuite name="pytest">
<testcase classname="tests.frameworks.inside.adk" name="test_one" time="0.1"/>
<testcase classname="tests.frameworks.inside.adk" name="test_two[a]" time="0.1"/>
<testcase classname="tests.frameworks.inside.adk" name="test_two[b]">
<failure message="assert 1 == 2">def test_two: assert 1 == 2</failure><system-out>what it said</system-out></testcase>
<testcase classname="tests.frameworks.inside.adk.TestThree" name="test_four"><skipped message="no model"/></testcase>
</testsuite></testsuites>"""


def test_tests_are_found_without_importing_a_framework() -> None:
    assert names_of_tests(MODULE) == ["test_one", "test_two", "TestThree.test_four"]


def test_a_report_says_how_every_case_ended() -> None:
    assert read_report(REPORT) == {
        ("adk.py", "test_one"): [Case("test_one", "passed")],
        ("adk.py", "test_two"): [
            Case("test_two[a]", "passed"),
            Case("test_two[b]", "failed", "def test_two: assert 1 == 2\nwhat it said"),
        ],
        ("adk.py", "TestThree.test_four"): [Case("TestThree.test_four", "skipped", "no model")],
    }
