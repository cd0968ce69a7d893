import {createShaper} from './build/src/index.js'
const rates=process.argv[2].split(',').map(Number),n=+process.argv[3],secs=+process.argv[4]
const buckets=Object.fromEntries(rates.map((r,i)=>['b'+i,{rate:r+'/s',capacity:Math.max(20,4*r)}]))
const shapers=Array.from({length:n},()=>createShaper({buckets,store:{type:'redis',url:'redis://127.0.0.1:7399',prefix:'p'+process.argv[2]+'-'+n},...(process.argv[5]?JSON.parse(process.argv[5]):{})}))
const got=shapers.map(()=>[]);let errors={};const t0=Date.now();let stop=false
shapers.forEach((s,i)=>{for(let k=0;k<10;k++)(async()=>{while(!stop){try{await s.run('acme',async()=>{if(!stop)got[i].push(Date.now()-t0)})}catch(e){errors[e.message?.slice(0,60)]=(errors[e.message?.slice(0,60)]??0)+1;await new Promise(r=>setTimeout(r,25))}}})()})
setTimeout(()=>{stop=true;const T=secs*1000;console.log(`redis ${rates}/s n ${n}: ${got.flat().length} of ${Math.min(...rates)*secs} by instance ${got.map(g=>g.length)} longest gap ${got.map(g=>Math.max(...[...g,T].map((x,k)=>x-(k?g[k-1]:0))))}`);process.exit()},secs*1000)
