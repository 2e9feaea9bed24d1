import React from "react";
import type { UpsertState } from "./api";
import { count, plural, short } from "./format";
import { Grid, Tag, When } from "./parts";

/** How an upsert table stands: its mark, what can still be read, and who is behind. */
export function UpsertPart(props: { upsert: UpsertState }): React.ReactElement {
  const { upsert } = props;
  const sources = Object.entries(upsert.positions).sort();
  return (
    <section aria-label="Upsert">
      <h2>Upsert</h2>
      <dl>
        <dt>Mark</dt>
        <dd>
          version {count(upsert.mark)} <When ms={upsert.mark_ms} />
        </dd>
        <dt>All copies have</dt>
        <dd>
          version {count(upsert.low_water_mark)}
          {upsert.mark > upsert.low_water_mark && ` (${count(upsert.mark - upsert.low_water_mark)} behind)`}
        </dd>
        <dt>Can be read from</dt>
        <dd>version {count(upsert.floor)}</dd>
        <dt>Cutoff</dt>
        <dd>{upsert.cutoff === null ? "none: events of any age are taken" : count(upsert.cutoff)}</dd>
        <dt>Not resolved yet</dt>
        <dd>{plural(upsert.waiting, "push", "pushes")}</dd>
        <dt>Key partitions</dt>
        <dd>{count(upsert.key_partitions)}</dd>
        {sources.length > 0 && <dt>Read up to</dt>}
        {sources.length > 0 && <dd>{sources.map(([source, at]) => `${source}: ${count(at)}`).join(", ")}</dd>}
      </dl>
      <h3>Readers with copies</h3>
      <Grid
        label="Readers with copies"
        head={["Reader", "Version", "Behind", "Last report", ""]}
        numbers={[1, 2]}
        rows={upsert.readers.map((one) => [
          <code>{one.reader}</code>,
          count(one.version),
          count(one.behind),
          <When ms={one.at_ms} />,
          <React.Fragment>
            {one.is_silent && <Tag kind="seg-red">silent</Tag>} {!one.is_caught_up && <Tag kind="standby">being filled</Tag>}
          </React.Fragment>,
        ])}
      />
      <h3>Versions</h3>
      <Grid
        label="Versions"
        head={["Version", "Published", "Entry", ""]}
        numbers={[0]}
        rows={upsert.versions.map((one) => [
          count(one.version),
          <When ms={one.at_ms} />,
          <code title={one.entry_id}>{short(one.entry_id)}</code>,
          <React.Fragment>
            {one.is_rollback && <Tag kind="standby">rollback</Tag>} {one.is_void && <Tag kind="seg-red">taken back</Tag>}
          </React.Fragment>,
        ])}
      />
    </section>
  );
}
