// Numbers and times as people read them.

const WHOLE = new Intl.NumberFormat("en-US");

export const count = (value: number | null): string => (value === null ? "–" : WHOLE.format(value));

export const plural = (value: number, noun: string, many = `${noun}s`): string => `${count(value)} ${value === 1 ? noun : many}`;

export function size(bytes: number | null): string {
  if (bytes === null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(1)} ${units[unit]}`;
}

/** A time in UTC, to the second. */
export const time = (ms: number | null): string =>
  ms === null || Math.abs(ms) > 8.6e15 ? "–" : new Date(ms).toISOString().slice(0, 19).replace("T", " ");

/** The first time that a segment can have, and the end of time: the years 1 and 10,000. */
export const START_MS = -62_135_596_800_000;
export const END_MS = 253_402_300_800_000;

export const isAllTime = (start: number, end: number): boolean => start <= START_MS && end >= END_MS;

/** A stretch of time, its end not included. */
export function span(start: number, end: number): string {
  if (isAllTime(start, end)) return "all time";
  const whole = start % 86_400_000 === 0 && end % 86_400_000 === 0;
  const shown = (ms: number) => (whole ? time(ms).slice(0, 10) : time(ms));
  return end - start === 86_400_000 && whole ? shown(start) : `${shown(start)} to ${shown(end)}`;
}

/** How far a time is from now, in the one unit that tells most. */
export function left(ms: number, now: number = Date.now()): string {
  const seconds = Math.abs(now - ms) / 1000;
  const steps: [number, string][] = [
    [86_400, "d"],
    [3_600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const [length, name] = steps.find(([least]) => seconds >= least) ?? [1, "s"];
  return `${Math.floor(seconds / length)} ${name}`;
}

/** How long ago, or how far ahead. */
export const ago = (ms: number, now: number = Date.now()): string =>
  ms > now ? `in ${left(ms, now)}` : `${left(ms, now)} ago`;

export const short = (entry: string): string => entry.slice(0, 8);
