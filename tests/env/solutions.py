"""How a reader of the accessibility tree solves tasks of WARC-Bench: one line per action.

A step is an action, the role and name of the element it goes to, and what else the action
takes. The name is the element's own or, where it has none, the text that stands right below it.
`After("x")` means the first element of the role behind the text x, for controls without a name.
"""

from __future__ import annotations

from typing import NamedTuple


class After(NamedTuple):
    """The first element behind a text."""

    text: str


# Icons of the svelte pages' font, as the tree shows them.
CLOSE_ICON = "\uf11a"
BACK_ICON = "\uf108"

SOLUTIONS: dict[str, list[tuple]] = {
    # --- doc_test.html: forms on tabs
    "online_train.1": [("fill", "textbox", "Additional Notes", "Experienced developer")],
    "online_train.9": [("click", "button", "Project Management"), ("click", "radio", "High")],
    "online_train.17": [
        ("click", "button", "Data Analytics"),
        ("click", "textbox", "Search employee records..."),
        ("type", "John Smith"),
    ],
    "online_train.85": [
        ("click", "button", "Project Management"),
        ("fill", "Date", "Due Date *", "2024-06-30"),
    ],
    "online_train.205": [
        ("click", "button", "Expense Reports"),
        ("fill", "textbox", "Report Title *", "Q1 2024 Travel Expenses"),
    ],
    # --- dropdown.html: drop-down lists of its own making
    "online_train.244": [
        ("click", "button", "Employee Management"),
        ("fill", "slider", "Salary Range", "85000"),
    ],
    "online_train.248": [("click", "button", "Expense Reports"), ("click", "radio", "Company Credit Card")],
    "online_train.261": [
        ("click", "button", "Project Tracking"),
        ("click", "button", "Assign Manager... ▼"),
        ("click", "generic", "Lisa Wang - Scrum Master"),
    ],
    "online_train.275": [("click", "button", "Analytics"), ("click", "checkbox", "Project Performance")],
    # --- dropdown_test.html
    "online_train.568": [
        ("click", "button", "Project Management"),
        ("fill", "textbox", "Project Description", "Complete redesign of company website"),
    ],
    "online_train.595": [
        ("fill", "textbox", "First Name *", "Jennifer"),
        ("fill", "textbox", "Last Name *", "Brown"),
    ],
    # --- enterprise_project_management.html
    "online_train.625": [("click", "button", "Employee Management")],
    "online_train.680": [("click", "checkbox", "Research")],
    "online_train.705": [("click", "button", "Expense Reports"), ("click", "radio", "Check")],
    # --- enterprise_resource_management.html: sliders on tabs within tabs
    "online_train.741": [("press", "slider", "Experience Level", "End")],
    "online_train.751": [
        ("click", "button", "Settings"),
        ("fill", "slider", "Probation Period (months)", "10"),
    ],
    "online_train.761": [
        ("click", "button", "Project Management"),
        ("fill", "slider", "Initial Completion Estimate", "10"),
    ],
    # --- enterprise_system.html: dialogs
    "online_train.845": [
        ("click", "button", "Data Analytics"),
        ("fill", "textbox", "Search analytics data...", "performance metrics"),
    ],
    "online_train.852": [
        ("click", "button", "Expense Reports"),
        ("fill", "Date", "Report Date", "2024-05-18"),
    ],
    "online_train.883": [
        ("click", "button", "Add New Employee"),
        ("fill", "textbox", "Full Name", "Alice Cooper"),
    ],
    "online_train.886": [
        ("click", "button", "Add New Employee"),
        ("fill", "spinbutton", "Salary", "85000"),
    ],
    # --- kanban.html
    "online_train.901": [("fill", "textbox", "Task Title", "Setup CI/CD Pipeline")],
    "online_train.924": [
        ("click", "button", "Project Management"),
        ("fill", "Date", "Start Date", "2024-05-10"),
    ],
    "online_train.936": [("click", "button", "Project Management"), ("click", "radio", "Web Development")],
    "online_train.942": [("click", "button", "Project Management"), ("click", "checkbox", "Python")],
    # --- menu_select.html: search and choose
    "online_train.1297": [
        ("click", "textbox", "Search countries..."),
        ("type", "Un"),
        ("click", "generic", "United States of America"),
    ],
    "online_train.1373": [
        ("click", "textbox", "Search professions..."),
        ("type", "Staff"),
        ("click", "generic", "Staff Software Engineer"),
    ],
    "online_train.1404": [
        ("fill", "textbox", "Search programming languages...", "Scala"),
        ("click", "generic", "Scala (Scala 3.3)"),
    ],
    "online_train.1421": [
        ("fill", "textbox", "Search programming languages...", "Script"),
        ("scroll", "generic", "LiveScript (LiveScript 1.6)", 100),
    ],
    # --- resource_management.html
    "online_train.994": [("fill", "slider", "Workload Capacity (Hours per week)", "20")],
    "online_train.1050": [
        ("click", "button", "Project Management"),
        ("fill", "slider", "Project Complexity", "6"),
    ],
    # --- visual.html
    "online_train.1175": [("click", "button", "Expense Reports")],
    "online_train.1196": [
        ("click", "button", "Document Editor"),
        ("fill", "textbox", "Document Title", "Q1 Business Review"),
    ],
    "online_train.1223": [("click", "checkbox", "Vision Insurance")],
    # --- the Svelte toolbar: controls without names
    "online.0": [("click", "generic", "\uf109")],
    "online.0~2": [
        ("click", "generic", "\uf109"),
        ("click", "link", "Button types"),
        ("fill", "slider", "", "75"),
    ],
    "online.6": [("click", "textbox", After("DatePicker")), ("click", "button", "Clear")],
    "online.9": [
        ("click", "generic", CLOSE_ICON),
        ("click", "textbox", After("MultiCombo")),
        ("click", "generic", "One"),
    ],
    "online.2": [  # in Pacific time, from February 2025 back to June 2024
        ("click", "textbox", After("DatePicker")),
        *[("click", "generic", BACK_ICON)] * 8,
        ("click", "generic", "6"),
    ],
    "online.4": [  # the same in UTC
        ("click", "textbox", After("DatePicker")),
        *[("click", "generic", BACK_ICON)] * 11,
        ("click", "generic", "21"),
    ],
    "online.3": [
        ("click", "generic", "Arial \uf107"),
        ("press", "ArrowDown"),
        ("press", "ArrowDown"),
        ("press", "Enter"),
    ],
    # --- the Svelte gantt: what is to be read off, and what is to be changed
    "online.190": [("terminate", "40")],
    "online.192": [("terminate", "3")],
    "online.215": [("terminate", "15-05-2024")],
    "online.193": [("dblclick", "generic", "3 Testing"), ("fill", "slider", "", "70")],
    "online.188": [("click", "generic", After("Testing 09-04-2024 46"))],
    # --- TriWest: a real form
    "online.46": [("fill", "textbox", "CAQH Number", "12345678")],
    "online.47": [("fill", "textbox", "First and Last Name", "John Doe")],
    "online.48": [("click", "textbox", "Phone"), ("type", "8048138888")],
    "online.49": [("fill", "textbox", "ZIP Code", "95015")],
}
