"""The task queue: workers stay with their model and their images, and nobody is idle while a task is left."""

from __future__ import annotations

from collections import Counter

from sightline.bench.engines.queue import Task, TaskQueue


def tasks(*names: str) -> list[Task]:
    """Return tasks called model/group/name."""
    made = []
    for name in names:
        model, group, _ = name.split("/")
        made.append(Task(model, name.encode, lambda *_: None, lambda: None, group=group))
    return made


def taken(queue: TaskQueue, model: str, group: str = "") -> str:
    task = queue.next_task(model, Counter(), group)
    return "" if task is None else task.message().decode()


def test_a_worker_stays_with_its_group_and_another_begins_a_new_one():
    queue = TaskQueue(tasks("m/a/1", "m/a/2", "m/b/1", "m/b/2"))
    assert [taken(queue, "m"), taken(queue, "m"), taken(queue, "m", "a"), taken(queue, "m", "b")] == [
        "m/a/1", "m/b/1", "m/a/2", "m/b/2",
    ]  # fmt: skip
    assert len(queue) == 0
    assert taken(queue, "m", "a") == ""


def test_a_worker_without_a_group_of_its_own_helps_where_most_is_left():
    queue = TaskQueue(tasks("m/a/1", "m/a/2", "m/b/1", "m/b/2", "m/b/3", "m/b/4"))
    assert [taken(queue, "m"), taken(queue, "m")] == ["m/a/1", "m/b/1"]
    assert taken(queue, "m", "done") == "m/b/2"


def test_a_task_whose_worker_died_is_the_next_of_its_group():
    (first, second, other) = tasks("m/a/1", "m/a/2", "m/b/1")
    queue = TaskQueue([first, second, other])
    assert queue.next_task("m", Counter()) is first
    queue.worker_died(first)
    assert (queue.next_task("m", Counter(), "a"), len(queue)) == (first, 2)


def test_the_model_comes_before_the_group():
    queue = TaskQueue(tasks("m/a/1", "n/a/1"))
    assert taken(queue, "n", "a") == "n/a/1"
    assert taken(queue, "n", "a") == "m/a/1"


def test_tasks_that_are_not_needed_are_passed_over():
    (first, second) = tasks("m/a/1", "m/a/2")
    first.is_needed = lambda: False
    queue = TaskQueue([first, second])
    assert queue.next_task("m", Counter()) is second
    assert len(queue) == 0
