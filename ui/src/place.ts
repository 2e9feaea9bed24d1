// Where on the page one is, kept behind the # so that a link can be passed on.

export type Place = { conn?: string; table?: string; view?: string };

export function read(): Place {
  const given = new URLSearchParams(window.location.hash.slice(1));
  const place: Place = {};
  for (const key of ["conn", "table", "view"] as const) {
    const value = given.get(key);
    if (value) place[key] = value;
  }
  return place;
}

export const link = (place: Place): string =>
  `${window.location.pathname}${window.location.search}#${new URLSearchParams(place as Record<string, string>)}`;
