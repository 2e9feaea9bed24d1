// The page's look, in the colours that Airflow has set for light and dark.

export const STYLE = `
.seg { color: var(--chakra-colors-fg, CanvasText); padding: 1rem; max-width: 90rem; font-size: .875rem; line-height: 1.45; height: 100%; overflow: auto; }
.seg h1 { font-size: 1.35rem; font-weight: 600; margin: 0; }
.seg h2 { font-size: 1.05rem; font-weight: 600; margin: 1.5rem 0 .5rem; }
.seg nav, .seg .seg-bar { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: center; margin-bottom: .9rem; }
.seg a { color: var(--chakra-colors-blue-fg, LinkText); text-decoration: underline; text-underline-offset: 2px; }
.seg table { border-collapse: collapse; width: 100%; }
.seg th, .seg td { text-align: left; padding: .4rem .6rem; border-bottom: 1px solid var(--chakra-colors-border, #8884); vertical-align: top; }
.seg th { color: var(--chakra-colors-fg-muted, GrayText); font-weight: 500; white-space: nowrap; }
.seg td.seg-number, .seg th.seg-number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.seg .seg-wide { overflow-x: auto; }
.seg .seg-muted { color: var(--chakra-colors-fg-muted, GrayText); }
.seg code { font-family: ui-monospace, monospace; font-size: .82rem; overflow-wrap: anywhere; }
.seg input, .seg select, .seg button { font: inherit; color: inherit; background: var(--chakra-colors-bg, Canvas); border: 1px solid var(--chakra-colors-border-emphasized, #8888); border-radius: .375rem; padding: .3rem .6rem; }
.seg button { cursor: pointer; }
.seg th button { border: 0; padding: 0; background: none; color: inherit; font-weight: inherit; text-decoration: underline dotted; text-underline-offset: 3px; }
.seg button:disabled { cursor: not-allowed; opacity: .55; }
.seg button.seg-danger:not(:disabled) { background: #b42318; border-color: #b42318; color: #fff; }
.seg :is(a, button, input, select):focus-visible { outline: 2px solid var(--chakra-colors-blue-solid, Highlight); outline-offset: 2px; }
.seg .seg-note { border-left: 4px solid var(--chakra-colors-border-emphasized, #8888); background: var(--chakra-colors-bg-muted, #8881); padding: .5rem .8rem; margin: .5rem 0; overflow-wrap: anywhere; }
.seg .seg-bad { border-left-color: #d92d20; }
.seg .seg-good { border-left-color: #079455; }
.seg .seg-tag { display: inline-block; padding: 0 .45rem; border-radius: .6rem; border: 1px solid currentColor; font-size: .75rem; white-space: nowrap; }
.seg .seg-tag.COMPLETED, .seg .seg-tag.visible { color: #067647; }
.seg .seg-tag.IN_PROGRESS, .seg .seg-tag.standby { color: #93370d; }
.seg .seg-tag.REVERTED, .seg .seg-tag.seg-red { color: #b42318; }
html.dark .seg .seg-tag.COMPLETED, .dark .seg .seg-tag.visible { color: #47cd89; }
html.dark .seg .seg-tag.IN_PROGRESS, .dark .seg .seg-tag.standby { color: #fdb022; }
html.dark .seg .seg-tag.REVERTED, .dark .seg .seg-tag.seg-red { color: #f97066; }
.seg dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: 0; }
.seg dt { color: var(--chakra-colors-fg-muted, GrayText); }
.seg dd { margin: 0; }
.seg dialog { color: inherit; background: var(--chakra-colors-bg-panel, Canvas); border: 1px solid var(--chakra-colors-border, #8888); border-radius: .5rem; padding: 1.2rem; max-width: 34rem; width: calc(100% - 2rem); margin: auto; }
.seg dialog::backdrop { background: #0008; }
.seg .seg-change { font-size: 1.25rem; font-variant-numeric: tabular-nums; margin: .6rem 0; }
.seg .seg-red { color: #b42318; font-weight: 600; }
html.dark .seg .seg-red { color: #f97066; }
.seg svg { width: 100%; height: 12rem; display: block; background: var(--chakra-colors-bg-muted, #8881); border-radius: .375rem; }
.seg svg .visible { fill: #17b26a; } .seg svg .standby { fill: #f79009; } .seg svg .overshadowed { fill: #98a2b3; }
.seg svg rect:hover { stroke: var(--chakra-colors-fg, CanvasText); }
`;
