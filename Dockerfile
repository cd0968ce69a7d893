FROM node:22-alpine AS build
WORKDIR /app
COPY package.json package-lock.json ./
RUN npm ci --ignore-scripts
COPY . .
RUN npm run build && npm ci --omit=dev --ignore-scripts

FROM node:22-alpine
# Node as process 1 would neither pass on signals nor reap children.
RUN apk add --no-cache tini
WORKDIR /app
ENV NODE_ENV=production
COPY --from=build /app/package.json /app/shaper.config.json ./
COPY --from=build /app/node_modules ./node_modules
COPY --from=build /app/bin ./bin
COPY --from=build /app/dist ./dist
USER node
EXPOSE 8080
# Any answer of its own will do: the port may be limited, the process has to be alive.
HEALTHCHECK --interval=10s --timeout=3s --start-period=2s \
  CMD node -e "fetch('http://127.0.0.1:8080/healthz').then(() => process.exit(0), () => process.exit(1))"
ENTRYPOINT ["/sbin/tini", "--", "node", "bin/shaper.js"]
CMD ["start"]
