"""Deliver dead letters of the deletion queue again, or forget them.

Dead letters are deletions that were given up after too many attempts; their objects stay until somebody looks. Mend
what the last error says first, then redrive. A purge forgets them: their objects stay, and a reconciliation finds them.
The page's list of dead letters starts this DAG.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_segments.operators.deletion import RedriveDeadLettersOperator

with DAG(
    dag_id="segments_dead_letters",
    schedule=None,
    tags=["segments"],
    doc_md=__doc__,
    params={
        "action": Param(type="string", enum=["redrive", "purge"], title="Action", description="Again, or never."),
        "ids": Param(
            type="array",
            items={"type": "string", "minLength": 4},
            minItems=1,
            title="Dead letters",
            description="Their ids, or the unique beginnings of some.",
        ),
        "segments_conn_id": Param("segments_default", type="string", title="Connection", minLength=1),
    },
):
    RedriveDeadLettersOperator(
        task_id="dead_letters",
        segments_conn_id="{{ params.segments_conn_id }}",
        ids="{{ params.ids | tojson }}",
        purge="{{ params.action == 'purge' }}",
    )
