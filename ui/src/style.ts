// The page's look, in the colours that Airflow has set for light and dark.

export const STYLE = `
.seg { --seg-good: #067647; --seg-warn: #93370d; --seg-bad: #b42318; --seg-line: var(--chakra-colors-border, #8884); --seg-soft: var(--chakra-colors-bg-muted, #8881); --seg-quiet: #4b5565; --seg-link: #175cd3;
  color: var(--chakra-colors-fg, CanvasText); padding: 1rem 1.25rem 3rem; max-width: 96rem; font-size: .875rem; line-height: 1.5; height: 100%; overflow: auto; }
.dark .seg { --seg-good: #47cd89; --seg-warn: #fdb022; --seg-bad: #fda29b; --seg-quiet: #b3bcca; --seg-link: #84caff; }
.seg h1 { font-size: 1.35rem; font-weight: 600; margin: 0; overflow-wrap: anywhere; }
.seg h2 { font-size: 1.05rem; font-weight: 600; margin: 1.75rem 0 .6rem; overflow-wrap: anywhere; }
.seg h3 { font-size: .9rem; font-weight: 600; margin: 1rem 0 .4rem; }
.seg b { font-weight: 600; }
.seg nav, .seg .seg-bar { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: center; margin-bottom: .9rem; }
.seg a { color: var(--seg-link); text-decoration: underline; text-underline-offset: 2px; overflow-wrap: anywhere; }
.seg nav a[aria-current] { color: inherit; font-weight: 600; text-decoration-thickness: 2px; }
.seg table { border-collapse: collapse; width: 100%; }
.seg th, .seg td { text-align: left; padding: .45rem .6rem; border-bottom: 1px solid var(--seg-line); vertical-align: top; }
.seg td:first-child { min-width: 7.5rem; }
.seg tbody tr:hover { background: var(--seg-soft); }
.seg th { color: var(--seg-quiet); font-weight: 500; white-space: nowrap; }
.seg td.seg-number, .seg th.seg-number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.seg time { white-space: nowrap; }
.seg .seg-wide { overflow-x: auto; }
.seg .seg-error { min-width: 14rem; max-width: 40rem; overflow-wrap: anywhere; }
.seg .seg-muted { color: var(--seg-quiet); }
.seg code { font-family: ui-monospace, monospace; font-size: .82rem; overflow-wrap: anywhere; }
.seg pre { overflow: auto; max-height: 30rem; background: var(--seg-soft); border-radius: .375rem; padding: .8rem; }
.seg input, .seg select, .seg button { font: inherit; color: inherit; background: var(--chakra-colors-bg, Canvas); border: 1px solid var(--chakra-colors-border-emphasized, #8888); border-radius: .375rem; padding: .3rem .6rem; max-width: 100%; }
.seg select option { color: CanvasText; background: Canvas; }
.dark .seg select, .dark .seg input { color-scheme: dark; }
.seg button { cursor: pointer; }
.seg button:hover:not(:disabled) { background: var(--seg-soft); }
.seg th button { border: 0; padding: 0; background: none; color: inherit; font-weight: inherit; text-decoration: underline dotted; text-underline-offset: 3px; }
.seg button:disabled { cursor: not-allowed; opacity: .55; }
.seg button.seg-danger:not(:disabled) { background: #b42318; border-color: #b42318; color: #fff; }
.seg :is(a, button, input, select, summary, pre, .seg-wide):focus-visible { outline: 2px solid var(--seg-link); outline-offset: 2px; }
.seg summary { cursor: pointer; margin: .5rem 0; }
.seg .seg-note { border-left: 4px solid var(--chakra-colors-border-emphasized, #8888); background: var(--seg-soft); padding: .5rem .8rem; margin: .5rem 0; overflow-wrap: anywhere; border-radius: 0 .375rem .375rem 0; }
.seg .seg-bad { border-left-color: #d92d20; }
.seg .seg-warn { border-left-color: #f79009; }
.seg .seg-good { border-left-color: #079455; }
.seg .seg-tag { display: inline-block; padding: 0 .45rem; border-radius: .6rem; border: 1px solid currentColor; font-size: .75rem; white-space: nowrap; }
.seg .seg-tag.COMPLETED, .seg .seg-tag.visible, .seg .seg-plus { color: var(--seg-good); }
.seg .seg-tag.IN_PROGRESS, .seg .seg-tag.standby { color: var(--seg-warn); }
.seg .seg-tag.REVERTED, .seg .seg-red, .seg .seg-minus { color: var(--seg-bad); }
.seg .seg-red { font-weight: 600; }
.seg dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: 0; }
.seg dt { color: var(--seg-quiet); }
.seg dd { margin: 0; }
.seg dl.seg-figures { grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .75rem; }
.seg .seg-figures > div, .seg .seg-card { border: 1px solid var(--seg-line); border-radius: .5rem; padding: .7rem .9rem; overflow-wrap: anywhere; }
.seg .seg-figures b { font-size: 1.3rem; font-variant-numeric: tabular-nums; }
.seg .seg-card { margin: 0 0 .75rem; } .seg .seg-card h2 { margin-top: 0; }
.seg figure { margin: .9rem 0 0; }
.seg figcaption { color: var(--seg-quiet); font-size: .8rem; margin-top: .3rem; display: flex; flex-wrap: wrap; gap: .2rem .9rem; }
.seg .seg-stack { display: flex; gap: 2px; height: .8rem; border-radius: .4rem; overflow: hidden; }
.seg .seg-stack span { min-width: 3px; }
.seg .seg-legend i { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px; vertical-align: -1px; }
.seg :is(.seg-stack span, .seg-legend i).visible { background: #17b26a; } .seg :is(.seg-stack span, .seg-legend i).overshadowed { background: #98a2b3; }
.seg :is(.seg-stack span, .seg-legend i).standby { background: #f79009; } .seg :is(.seg-stack span, .seg-legend i).waiting { background: #f04438; }
.seg .seg-log { list-style: none; margin: 0; padding: 0 0 0 .35rem; }
.seg .seg-log > li { position: relative; display: grid; grid-template-columns: 1fr max-content; gap: .1rem 1rem; padding: .35rem 0 .6rem 1.5rem; border-left: 2px solid var(--seg-line); margin-left: .35rem; }
.seg .seg-log > li::before { content: ""; position: absolute; left: -.45rem; top: .65rem; width: .75rem; height: .75rem; border-radius: 50%; border: 2px solid currentColor; background: currentColor; color: #17b26a; }
.seg .seg-log > li.REVERTED::before { color: #d92d20; background: var(--chakra-colors-bg, Canvas); }
.seg .seg-log > li.IN_PROGRESS::before { color: #f79009; background: var(--chakra-colors-bg, Canvas); }
.seg .seg-head { display: flex; flex-wrap: wrap; gap: .1rem .6rem; align-items: baseline; }
.seg .seg-numbers { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-variant-numeric: tabular-nums; }
.seg .seg-do { grid-row: span 2; }
.seg .seg-log details { grid-column: 1 / -1; color: var(--seg-quiet); } .seg .seg-log summary { margin: 0; font-size: .8rem; }
.seg .seg-log > li.REVERTED .seg-numbers { color: var(--seg-quiet); text-decoration: line-through; }
.seg .seg-two { display: grid; grid-template-columns: repeat(auto-fit, minmax(16rem, 1fr)); gap: 1rem; }
.seg ul { margin: .2rem 0; padding-left: 1.2rem; list-style: disc; }
.seg .seg-buttons { white-space: nowrap; }
.seg ul.seg-plain { list-style: none; padding: 0; margin: 0; font-variant-numeric: tabular-nums; }
.seg dialog { color: inherit; background: var(--chakra-colors-bg-panel, Canvas); border: 1px solid var(--seg-line); border-radius: .5rem; padding: 1.2rem; max-width: 36rem; width: calc(100% - 2rem); margin: auto; }
.seg dialog label, .seg dialog p { display: block; margin: .6rem 0; }
.seg dialog label input { margin-top: .3rem; }
.seg dialog::backdrop { background: #0008; }
.seg .seg-change { font-size: 1.25rem; font-variant-numeric: tabular-nums; margin: .6rem 0; }
.seg svg { width: 100%; height: 12rem; display: block; background: var(--seg-soft); border-radius: .375rem; }
.seg svg .visible { fill: #17b26a; } .seg svg .standby { fill: #f79009; } .seg svg .overshadowed { fill: #98a2b3; }
.seg svg.seg-zoom { cursor: zoom-in; } .seg svg .seg-all { fill: transparent; } .seg svg .seg-at .seg-all { fill: var(--seg-line); } .seg svg .seg-at rect { opacity: .8; }
.seg .seg-axis { display: flex; justify-content: space-between; gap: .5rem; color: var(--seg-quiet); font-size: .75rem; font-variant-numeric: tabular-nums; padding-top: .15rem; overflow: hidden; white-space: nowrap; }
@media (max-width: 40rem) { .seg .seg-axis span:nth-child(even) { display: none; } }
`;
