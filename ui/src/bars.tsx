import React from "react";
import { isAllTime, size, time } from "./format";

const WIDTH = 1000;
const HEIGHT = 190;
const GROUND = 200;
const TICKS = 5;
const DAY_MS = 86_400_000;

/** A stretch of time with what it holds, drawn one part upon the other. */
export type Bar = { start: number; end: number; parts: { kind: string; bytes: number }[]; text: string };

type Props = {
  label: string;
  bars: Bar[];
  caption: string;
  /** A click on a bar, or a drag over several, chooses their time. */
  choose?: (start: number, end: number) => void;
};

/** Bars over time, their height in bytes. The one under the pointer is told below. */
export function Bars(props: Props): React.ReactElement {
  const { bars, choose } = props;
  const [at, setAt] = React.useState<number | null>(null);
  const [from, setFrom] = React.useState<number | null>(null);
  const first = Math.min(...bars.map((one) => one.start));
  const last = Math.max(...bars.map((one) => one.end));
  const across = (ms: number): number => ((ms - first) / Math.max(1, last - first)) * WIDTH;
  const tallest = Math.max(1, ...bars.map(total));
  const drop = (number: number): void => {
    const ends = [bars[from ?? number], bars[number]].filter((one) => one !== undefined);
    setFrom(null);
    choose?.(Math.min(...ends.map((one) => one.start)), Math.max(...ends.map((one) => one.end)));
  };
  const isChosen = (number: number): boolean =>
    at !== null && (from === null ? number === at : number >= Math.min(from, at) && number <= Math.max(from, at));
  const told = at === null ? undefined : bars[at];
  return (
    <figure className="seg-picture">
      <svg
        viewBox={`0 0 ${WIDTH} ${GROUND}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={props.label}
        className={choose ? "seg-zoom" : ""}
        onMouseLeave={() => {
          setAt(null);
          setFrom(null);
        }}
      >
        {bars.map((bar, number) => (
          <g
            key={`${bar.start} ${bar.end}`}
            className={isChosen(number) ? "seg-at" : ""}
            onMouseEnter={() => setAt(number)}
            {...(choose && { onMouseDown: () => setFrom(number), onMouseUp: () => drop(number) })}
          >
            <rect className="seg-all" x={across(bar.start)} width={wide(across, bar)} y={0} height={GROUND} />
            {stacked(bar, tallest).map((part) => (
              <rect
                key={part.kind}
                className={part.kind}
                x={across(bar.start)}
                width={wide(across, bar)}
                y={part.y}
                height={part.height}
              />
            ))}
          </g>
        ))}
      </svg>
      {!isAllTime(first, last) && (
        <div className="seg-axis" aria-hidden="true">
          {ticks(first, last).map((text, number) => (
            <span key={number}>{text}</span>
          ))}
        </div>
      )}
      <figcaption>{told === undefined ? `${props.caption}; the tallest is ${size(tallest)}` : told.text}</figcaption>
    </figure>
  );
}

const total = (bar: Bar): number => bar.parts.reduce((sum, part) => sum + part.bytes, 0);

const wide = (across: (ms: number) => number, bar: Bar): number => Math.max(1, across(bar.end) - across(bar.start) - 0.5);

function stacked(bar: Bar, tallest: number): { kind: string; y: number; height: number }[] {
  let below = 0;
  return bar.parts
    .filter((part) => part.bytes > 0)
    .map((part) => {
      const tall = Math.max(1.5, (part.bytes / tallest) * HEIGHT);
      below += tall;
      return { kind: part.kind, y: GROUND - below, height: Math.max(1, tall - 0.4) };
    });
}

/** Times along the axis: days, or hours where all of it is a few days. */
function ticks(first: number, last: number): string[] {
  const length = last - first < 3 * DAY_MS ? 16 : 10;
  const all = Array.from({ length: TICKS }, (_, number) => time(first + ((last - first) * number) / (TICKS - 1)));
  return all.map((text) => text.slice(0, length));
}
