import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';

const empty = fileURLToPath(new URL('./src/empty.js', import.meta.url));

export default defineConfig({
  resolve: { alias: { stream: empty, util: empty } }, // Node's, which no panel needs
  define: { 'process.env': {} },
  build: { chunkSizeWarningLimit: 8192 },
  logLevel: 'error', // libraries' directives are no news
});
