import React from "react";
import { getRegions, getTableRegions, type ComparisonRow, type RegionRow, type TableRegions } from "./api";
import { ago, count, left, plural, short } from "./format";
import { Banners, Grid, Shown, Tag, useLoaded, When } from "./parts";
import { link } from "./place";

const REFRESH_MS = 15_000;

/** The regions of every upsert table that is fed from some. */
export function RegionsPage(props: { conn: string }): React.ReactElement {
  const { conn } = props;
  const loaded = useLoaded(() => getRegions(conn), [conn], REFRESH_MS);
  return (
    <Shown loaded={loaded}>
      {(found) =>
        found.tables.length === 0 ? (
          <p>
            No upsert table here names <code>upsertConfig.regions</code>.
          </p>
        ) : (
          <React.Fragment>
            {found.tables.map((one) => (
              <section key={one.table} className="seg-card" aria-label={`Regions of ${one.table}`}>
                <h2>
                  <a href={link({ conn, table: one.table })}>{one.table}</a>
                </h2>
                <Regions conn={conn} found={one} />
              </section>
            ))}
          </React.Fragment>
        )
      }
    </Shown>
  );
}

/** The regions of one upsert table, as a part of its page; nothing for a table without any. */
export function RegionsPart(props: { conn: string; table: string }): React.ReactElement | null {
  const { conn, table } = props;
  const loaded = useLoaded(() => getTableRegions(conn, table), [], REFRESH_MS);
  if (loaded.value !== null && loaded.value.regions.length === 0) return null;
  return (
    <section aria-label="Regions">
      <h2>Regions</h2>
      <Shown loaded={loaded}>{(found) => <Regions conn={conn} found={found} />}</Shown>
    </section>
  );
}

/** Says which regions are silent or differ from another one. */
export function SilentRegions(props: { conn: string }): React.ReactElement {
  const { conn } = props;
  const loaded = useLoaded(() => getRegions(conn), [conn], REFRESH_MS);
  const texts = (loaded.value?.tables ?? []).flatMap((one) => {
    const silent = one.regions.filter((region) => isBad(region.state));
    const apart = one.comparisons.some((done) => done.has_diverged);
    const page = <a href={link({ conn, view: "regions" })}>Regions</a>;
    return [
      ...(silent.length > 0
        ? [
            <React.Fragment>
              Table {one.table}: {silent.map((region) => `region ${region.region} ${quiet(region)}`).join(", ")}. See {page}.
            </React.Fragment>,
          ]
        : []),
      ...(apart
        ? [
            <React.Fragment>
              Table {one.table} differs from the one of another region, and lag does not explain it. See {page}.
            </React.Fragment>,
          ]
        : []),
    ];
  });
  return <Banners texts={texts} bad />;
}

const isBad = (state: string): boolean => state === "silent" || state === "never";

const quiet = (region: RegionRow): string =>
  region.lag_ms === null ? "was never heard" : `is silent, last heard ${lag(region.lag_ms)} ago`;

/** A length of time in its largest unit. */
const lag = (ms: number): string => left(0, ms);

function Regions(props: { conn: string; found: TableRegions }): React.ReactElement {
  const { conn, found } = props;
  return (
    <React.Fragment>
      {found.error !== null && <Banners texts={[found.error]} bad />}
      {found.interval_ms !== null && <p className="seg-muted">A heartbeat is expected every {lag(found.interval_ms)}.</p>}
      <Grid
        label={`Regions of ${found.table}`}
        head={["Region", "State", "Last heard", "Source partitions: last heartbeat, next offset"]}
        rows={found.regions.map((one) => [<code>{one.region}</code>, <State state={one.state} />, lastHeard(one), <Sources region={one} />])}
      />
      <h3>Last comparisons</h3>
      {found.comparisons.length === 0 ? (
        <p className="seg-muted">
          Never compared with another region: the DAG <code>segments_compare_regions</code> does it.
        </p>
      ) : (
        <Grid
          label={`Comparisons of ${found.table}`}
          head={["With", "When", "Outcome", "Found", "Versions", "The other was behind by", "Findings"]}
          rows={found.comparisons.map((one) => compared(conn, one))}
        />
      )}
    </React.Fragment>
  );
}

/** A heartbeat of a clock that is ahead is still to come. */
const lastHeard = (one: RegionRow): string =>
  one.state === "clock ahead" && one.heard_ms !== null ? ago(one.heard_ms) : heard(one.lag_ms);

const heard = (ms: number | null): string => (ms === null ? "never" : `${lag(ms)} ago`);

function State(props: { state: string }): React.ReactElement {
  const { state } = props;
  const kind = isBad(state) ? "seg-red" : state === "clock ahead" ? "standby" : state === "heard" ? "visible" : "seg-muted";
  return <Tag kind={kind}>{state}</Tag>;
}

function Sources(props: { region: RegionRow }): React.ReactElement {
  const { partitions } = props.region;
  if (partitions.length === 0) return <span className="seg-muted">nothing was read yet</span>;
  return (
    <ul className="seg-plain">
      {partitions.map((one) => (
        <li key={one.partition}>
          {one.partition}: {heard(one.lag_ms)}, {count(one.position)}
          {one.behind > 0 && <span className="seg-muted"> ({plural(one.behind, "offset")} behind another region at a comparison)</span>}
        </li>
      ))}
    </ul>
  );
}

function compared(conn: string, one: ComparisonRow): React.ReactNode[] {
  const found = Object.entries(one.counts).sort();
  const behind = Object.entries(one.other_behind).sort();
  return [
    one.other,
    <When ms={one.at_ms} />,
    one.has_diverged ? <Tag kind="seg-red">diverged</Tag> : <Tag kind="visible">no divergence</Tag>,
    found.length === 0 ? "all keys agree" : found.map(([kind, number]) => `${kind}: ${count(number)}`).join(", "),
    `${count(one.version)} here, ${count(one.other_version)} there`,
    behind.length === 0 ? "nothing" : behind.map(([source, offsets]) => `${source}: ${plural(offsets, "offset")}`).join(", "),
    <React.Fragment>
      {one.findings !== "" && <a href={link({ conn, table: one.findings })}>{one.findings}</a>}
      <div className="seg-muted">{one.entry_id === "" ? "nothing new" : <code title={one.entry_id}>{short(one.entry_id)}</code>}</div>
    </React.Fragment>,
  ];
}
