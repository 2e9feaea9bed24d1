// One script that takes React from the page it is loaded into, and says so in `globalThis.AirflowPlugin`.
import { defineConfig } from "vite";

export default defineConfig({
  build: {
    emptyOutDir: false,
    outDir: "../airflow_provider_segments/plugins/static",
    lib: { entry: "src/main.tsx", name: "SegmentsPage", formats: ["iife"], fileName: () => "segments.js" },
    rollupOptions: { external: ["react"], output: { globals: { react: "React" } } },
  },
  define: { "process.env.NODE_ENV": '"production"' },
});
