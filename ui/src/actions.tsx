import React from "react";
import { dagOf, type Connections, type DeadLetter, type LockRow } from "./api";
import { count, plural, short, span } from "./format";
import { RunDialog } from "./run";

type Dialog = { conn: string; known: Connections; done: () => void; close: () => void };

/** Deliver dead letters again, or forget them for good. */
export function DeadLetterAction(props: Dialog & { letters: DeadLetter[]; purge: boolean }): React.ReactElement {
  const { letters, purge } = props;
  const messages = letters.reduce((sum, one) => sum + one.messages, 0);
  const verb = purge ? "Purge" : "Redrive";
  return (
    <RunDialog
      label={`${verb} dead letters`}
      title={`${verb} ${plural(letters.length, "dead letter")}`}
      verb={verb}
      dag={props.known.dead_letters_dag_id}
      conf={{
        action: purge ? "purge" : "redrive",
        ids: letters.map((one) => one.dead_id),
        segments_conn_id: props.conn,
      }}
      word={purge ? "purge" : null}
      good={purge ? "Done: they are forgotten." : "Done: they will be delivered again."}
      bad="It failed, and its log says why."
      done={props.done}
      close={props.close}
    >
      <p>
        {purge
          ? `Forget ${plural(messages, "deletion")}: the objects stay in storage, until a reconciliation finds them.`
          : `Deliver ${plural(messages, "deletion")} again, with all attempts before them. Mend what the last error says first.`}
      </p>
      <ul>
        {letters.slice(0, MOST_SHOWN).map((one) => (
          <li key={one.dead_id}>
            <code title={one.dead_id}>{short(one.dead_id)}</code> of {one.table}: {one.error}
          </li>
        ))}
        {letters.length > MOST_SHOWN && <li>and {count(letters.length - MOST_SHOWN)} more</li>}
      </ul>
    </RunDialog>
  );
}

const MOST_SHOWN = 10;

/** Revoke a lock: whoever holds it can publish nothing any more that relies on it. */
export function RevokeAction(props: Dialog & { lock: LockRow }): React.ReactElement {
  const { lock } = props;
  return (
    <RunDialog
      label={`Revoke a lock of ${lock.table}`}
      title={
        <React.Fragment>
          Revoke lock <code title={lock.lock_id}>{short(lock.lock_id)}</code> of {lock.table}
        </React.Fragment>
      }
      verb="Revoke"
      dag={dagOf(props.known.revoke_dag_id, lock.table)}
      conf={{ table: lock.table, lock_id: lock.lock_id, segments_conn_id: props.conn }}
      word={lock.table}
      good="Done: what relies on it can no longer publish."
      bad="It failed, and its log says why."
      done={props.done}
      close={props.close}
    >
      <p>
        <code>{lock.group}</code> holds it on {span(lock.start_ms, lock.end_ms)}. A push that relies on it is refused and reverted;
        readers see no change.
      </p>
    </RunDialog>
  );
}
